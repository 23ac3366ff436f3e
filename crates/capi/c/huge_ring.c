// A ring of huge blocks between two processes: the producer fills blocks of 2 MiB and passes their numbers; the consumer
// reads them where they lie, and gives them back. Nothing is copied. The ring itself lies in a page of the same arena.
//
//   huge_ring [BLOCKS]
#include "check.h"

#include <stdatomic.h>
#include <sys/wait.h>
#include <sched.h>
#include <unistd.h>

enum { SLOTS = 4, ORDER = FW_PAGEBLOCK_ORDER };

struct ring {
  _Atomic uint64_t head, tail; // filled by the producer up to head, emptied by the consumer up to tail
  uint64_t frames[SLOTS];
};

static pid_t consumer; // in the producer

// Waits a moment for the other process, which must be there.
static void wait_for_it(void) {
  sched_yield();
  CHECK(!consumer || waitpid(consumer, NULL, WNOHANG) == 0);
}

static size_t words = ((size_t)FW_PAGE_BYTES << ORDER) / sizeof(uint64_t);

static void produce(struct fw_shm *shm, struct ring *ring, uint64_t blocks) {
  for (uint64_t n = 0; n < blocks; n++) {
    while (n - atomic_load_explicit(&ring->tail, memory_order_acquire) == SLOTS)
      wait_for_it();
    uint64_t pfn;
    // The consumer may hold the last ones.
    while ((pfn = fw_shm_alloc(shm, ORDER, FW_MOVABLE)) == FW_NO_FRAME)
      wait_for_it();
    uint64_t *data = fw_shm_address(shm, pfn);
    for (size_t at = 0; at < words; at += 512)
      data[at] = n ^ at;
    ring->frames[n % SLOTS] = pfn;
    // Without an owner from here on: if we die now, the block waits for the consumer.
    CHECK(fw_shm_disown(shm, pfn, ORDER) == FW_OK);
    atomic_store_explicit(&ring->head, n + 1, memory_order_release);
  }
}

static void consume(struct fw_shm *shm, struct ring *ring, uint64_t blocks) {
  for (uint64_t n = 0; n < blocks; n++) {
    while (atomic_load_explicit(&ring->head, memory_order_acquire) == n)
      wait_for_it();
    uint64_t pfn = ring->frames[n % SLOTS];
    CHECK(fw_shm_adopt(shm, pfn, ORDER) == FW_OK);
    atomic_store_explicit(&ring->tail, n + 1, memory_order_release);
    const uint64_t *data = fw_shm_address(shm, pfn);
    for (size_t at = 0; at < words; at += 512)
      CHECK(data[at] == (n ^ at));
    CHECK(fw_shm_free(shm, pfn, ORDER) == FW_OK);
  }
}

int main(int argc, char **argv) {
  if (argc == 5) {
    // Another program could be here: it finds everything at the same addresses.
    struct fw_shm *own;
    CHECK(fw_shm_attach(atoi(argv[2]), &own) == FW_OK && fw_shm_number(own) == 2);
    consume(own, fw_shm_address(own, strtoul(argv[3], NULL, 10)), strtoul(argv[4], NULL, 10));
    CHECK(fw_shm_close(own) == FW_OK);
    return 0;
  }
  uint64_t blocks = argc > 1 ? strtoul(argv[1], NULL, 10) : 500;
  struct fw_options options;
  struct fw_shm *shm;
  CHECK(fw_options_init(&options, 16 << 20) == FW_OK);
  // Of pages of 2 MiB, if the system has them.
  options.backing = FW_BACKING_HUGETLB;
  if (fw_shm_create(&options, "ring", &shm) != FW_OK) {
    options.backing = FW_BACKING_BASE;
    CHECK(fw_shm_create(&options, "ring", &shm) == FW_OK);
  }
  uint64_t page = fw_shm_alloc(shm, 0, FW_UNMOVABLE);
  CHECK(page != FW_NO_FRAME);
  struct ring *ring = fw_shm_address(shm, page); // zeroes: an empty ring
  char file[24], frame[24], count[24];
  snprintf(file, sizeof file, "%d", dup(fw_shm_fd(shm))); // the copy is not closed on exec
  snprintf(frame, sizeof frame, "%lu", (unsigned long)page);
  snprintf(count, sizeof count, "%lu", (unsigned long)blocks);
  consumer = fork();
  CHECK(consumer >= 0);
  if (consumer == 0) {
    CHECK(fw_shm_alloc(shm, 0, FW_MOVABLE) == FW_NO_FRAME); // the parent's handle is not ours
    execl(argv[0], argv[0], "consumer", file, frame, count, (char *)NULL);
    _exit(127);
  }
  produce(shm, ring, blocks);
  int status;
  CHECK(waitpid(consumer, &status, 0) == consumer && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  struct fw_shm_account account;
  CHECK(fw_shm_verify(shm, &account) == FW_OK && account.mine == 1 && account.disowned == 0 && account.others == 0);
  printf("%lu blocks of 2 MiB passed, none lost, in pages of %s\n", (unsigned long)blocks,
         options.backing == FW_BACKING_HUGETLB ? "2 MiB" : "4 KiB");
  CHECK(fw_shm_close(shm) == FW_OK);
  return 0;
}
