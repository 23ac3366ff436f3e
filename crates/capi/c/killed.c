// Two processes on one arena, and one of them is killed at a random moment, again and again. The other one goes on: what
// the dead one owned comes back, what it had disowned is found, no block is had twice, and every invariant holds.
//
//   killed [KILLS [SEED]]
#include "check.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGES = 4096, MOST = 600 };

struct block {
  uint64_t pfn;
  uint32_t order;
};

static unsigned long state;

static unsigned any(unsigned below) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (unsigned)(state >> 33) % below;
}

// A process's blocks. Each is stamped, first word and last, so that a block that two have is seen.
static struct block blocks[MOST];
static unsigned held;

static uint64_t *ends(struct fw_shm *shm, struct block block, int last) {
  char *start = fw_shm_address(shm, block.pfn);
  return (uint64_t *)(last ? start + ((size_t)FW_PAGE_BYTES << block.order) - sizeof(uint64_t) : start);
}

static uint64_t stamp(struct fw_shm *shm, struct block block) { return block.pfn << 8 | fw_shm_number(shm); }

static struct block take_out(struct fw_shm *shm) {
  unsigned at = any(held);
  struct block block = blocks[at];
  blocks[at] = blocks[--held];
  CHECK(*ends(shm, block, 0) == stamp(shm, block) && *ends(shm, block, 1) == stamp(shm, block));
  return block;
}

static void put_in(struct fw_shm *shm, struct block block) {
  *ends(shm, block, 0) = *ends(shm, block, 1) = stamp(shm, block);
  blocks[held++] = block;
}

// One step of a process's life.
static void step(struct fw_shm *shm) {
  unsigned what = any(100);
  if (what < 50 && held < MOST) {
    struct block block = {0, any(4) ? 0 : any(6)};
    block.pfn = fw_shm_alloc(shm, block.order, any(3));
    if (block.pfn != FW_NO_FRAME)
      put_in(shm, block);
  } else if (what < 90 && held) {
    struct block block = take_out(shm);
    CHECK(fw_shm_free(shm, block.pfn, block.order) == FW_OK);
  } else if (what < 96 && held) {
    struct block block = take_out(shm);
    CHECK(fw_shm_disown(shm, block.pfn, block.order) == FW_OK);
  } else if (held < MOST) {
    struct block found;
    if (fw_shm_disowned(shm, &found.pfn, &found.order, 1) > 0 && fw_shm_adopt(shm, found.pfn, found.order) == FW_OK)
      put_in(shm, found);
  }
}

static pid_t start(const char *self, int fd, unsigned seed) {
  char file[16], number[16];
  snprintf(file, sizeof file, "%d", fd);
  snprintf(number, sizeof number, "%u", seed);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    execl(self, self, "victim", file, number, (char *)NULL);
    _exit(127);
  }
  return child;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
  if (argc == 4 && !strcmp(argv[1], "victim")) {
    struct fw_shm *shm;
    CHECK(fw_shm_attach(atoi(argv[2]), &shm) == FW_OK);
    state = strtoul(argv[3], NULL, 10);
    for (;;)
      step(shm);
  }
  unsigned kills = argc > 1 ? (unsigned)atoi(argv[1]) : 40;
  state = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
  struct fw_options options;
  struct fw_shm *shm;
  CHECK(fw_options_init(&options, (uint64_t)PAGES * FW_PAGE_BYTES) == FW_OK);
  CHECK(fw_shm_create(&options, "killed", &shm) == FW_OK && fw_shm_number(shm) == 1);
  int fd = dup(fw_shm_fd(shm)); // not closed on exec
  unsigned long steps = 0, lost = 0;
  struct fw_shm_account account;
  for (unsigned n = 0; n < kills; n++) {
    pid_t victim = start("/proc/self/exe", fd, any(1u << 30));
    // Until it has attached, and then for a random while: both work.
    double end = now() + 60;
    do
      step(shm), steps++;
    while (fw_shm_verify(shm, &account) == FW_OK && account.others == 0 && now() < end);
    end = now() + any(2000) * 1e-6;
    do
      step(shm), steps++;
    while (now() < end);
    CHECK(kill(victim, SIGKILL) == 0);
    // Also while it dies.
    for (unsigned more = any(50); more > 0; more--)
      step(shm), steps++;
    int status;
    CHECK(waitpid(victim, &status, 0) == victim && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

    CHECK(fw_shm_reap(shm, NULL, NULL) == FW_OK);
    uint64_t own = 0;
    for (unsigned at = 0; at < held; at++) {
      CHECK(*ends(shm, blocks[at], 0) == stamp(shm, blocks[at]) && *ends(shm, blocks[at], 1) == stamp(shm, blocks[at]));
      own += UINT64_C(1) << blocks[at].order;
    }
    CHECK(fw_shm_verify(shm, &account) == FW_OK);
    CHECK(account.mine == own && account.others == 0 && account.of_the_dead == 0);
    CHECK(account.free + account.on_lists + account.mine + account.disowned == PAGES);
    // What has no owner: the dead one's legacy, and our own.
    struct block left;
    while (fw_shm_disowned(shm, &left.pfn, &left.order, 1) > 0) {
      CHECK(fw_shm_adopt(shm, left.pfn, left.order) == FW_OK && fw_shm_free(shm, left.pfn, left.order) == FW_OK);
      lost += 1ul << left.order;
    }
  }
  while (held) {
    struct block block = take_out(shm);
    CHECK(fw_shm_free(shm, block.pfn, block.order) == FW_OK);
  }
  CHECK(fw_shm_verify(shm, &account) == FW_OK && account.free + account.on_lists == PAGES && account.deaths == kills);
  printf("%u kills, %lu of them while tables were changed; %lu pages taken back from the dead, %lu found without an owner; "
         "%lu steps of the other process\n",
         kills, (unsigned long)account.rebuilds, (unsigned long)account.taken_back, lost, steps);
  CHECK(fw_shm_close(shm) == FW_OK && fw_shm_close(shm) == FW_ERR_HANDLE && fw_shm_free(NULL, 0, 0) == FW_ERR_NULL);
  return 0;
}
