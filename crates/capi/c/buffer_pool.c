// A buffer pool, as a database has one: fixed-size buffers out of an arena that the whole process shares, a table from
// page number to buffer, and a clock that picks the buffer to replace. When the arena runs short, the allocator asks the
// pool, and the pool gives up buffers that no thread uses.
//
//   buffer_pool [LOOKUPS]
#include "check.h"

#include <pthread.h>
#include <string.h>

enum { PAGES = 4096, BUFFER_ORDER = 1, BUFFER_BYTES = FW_PAGE_BYTES << BUFFER_ORDER, THREADS = 2 };

struct buffer {
  void *memory; // NULL: not in the pool
  int used;     // since the clock's hand last came by
  int pinned;
};

static struct {
  pthread_mutex_t lock;
  struct fw_arena *arena;
  struct buffer table[PAGES];
  unsigned hand;
  unsigned long hits, misses, given_up;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

// Takes the buffer that has been unused longest out of the pool. The pool's lock is held.
static void *evict(void) {
  for (unsigned turn = 0; turn < 2 * PAGES; turn++) {
    struct buffer *buffer = &pool.table[pool.hand];
    pool.hand = (pool.hand + 1) % PAGES;
    if (!buffer->memory || buffer->pinned)
      continue;
    if (buffer->used) {
      buffer->used = 0;
      continue;
    }
    void *memory = buffer->memory;
    buffer->memory = NULL;
    return memory;
  }
  return NULL;
}

// What the arena calls when an allocation would fail. No lock of the allocator is held; ours is, by this same thread,
// which is why the pool allocates with its lock held and needs none here.
static uint64_t reclaim(void *context, const struct fw_ask *ask, struct fw_release *to) {
  (void)context;
  uint64_t looked_at = 0;
  for (uint64_t freed = 0; freed < ask->target; freed += 1u << BUFFER_ORDER) {
    void *memory = evict();
    if (!memory)
      break;
    looked_at += 1u << BUFFER_ORDER;
    CHECK(fw_release_free(to, fw_frame_at(pool.arena, memory), BUFFER_ORDER) == FW_OK);
    pool.given_up++;
  }
  return looked_at;
}

// The buffer of a page, read in if it is not there. To be unpinned when done with.
static struct buffer *pin(struct fw_cpu *cpu, unsigned page) {
  pthread_mutex_lock(&pool.lock);
  struct buffer *buffer = &pool.table[page];
  if (buffer->memory) {
    pool.hits++;
  } else {
    pool.misses++;
    void *memory = fw_alloc_pages(cpu, BUFFER_ORDER, FW_MOVABLE);
    CHECK(memory);
    memset(memory, (int)(page & 0xff), BUFFER_BYTES); // as if it were read from a disk
    buffer->memory = memory;
  }
  buffer->used = 1;
  buffer->pinned++;
  pthread_mutex_unlock(&pool.lock);
  return buffer;
}

static void unpin(struct buffer *buffer) {
  pthread_mutex_lock(&pool.lock);
  buffer->pinned--;
  pthread_mutex_unlock(&pool.lock);
}

static unsigned long lookups;

static void *work(void *seed) {
  struct fw_cpu *cpu;
  CHECK(fw_attach(pool.arena, &cpu) == FW_OK);
  unsigned long state = (unsigned long)seed;
  for (unsigned long n = 0; n < lookups; n++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    // Half of the lookups go to a sixteenth of the pages.
    unsigned page = (unsigned)(state >> 33) % (n % 2 ? PAGES : PAGES / 16);
    struct buffer *buffer = pin(cpu, page);
    const unsigned char *bytes = buffer->memory;
    CHECK(bytes[0] == (page & 0xff) && bytes[BUFFER_BYTES - 1] == (page & 0xff));
    unpin(buffer);
  }
  return NULL; // the end of the thread detaches
}

int main(int argc, char **argv) {
  lookups = argc > 1 ? strtoul(argv[1], NULL, 10) : 200000;
  // Room for a quarter of the pages.
  struct fw_options options;
  CHECK(fw_options_init(&options, (uint64_t)PAGES * BUFFER_BYTES / 4) == FW_OK);
  options.cpus = THREADS;
  CHECK(fw_arena_new(&options, &pool.arena) == FW_OK);
  CHECK(fw_set_reclaim(pool.arena, reclaim, NULL) == FW_OK);
  pthread_t threads[THREADS];
  for (long n = 0; n < THREADS; n++)
    CHECK(pthread_create(&threads[n], NULL, work, (void *)(n + 1)) == 0);
  for (int n = 0; n < THREADS; n++)
    pthread_join(threads[n], NULL);

  struct fw_account account;
  CHECK(fw_verify(pool.arena, &account) == FW_OK);
  uint64_t buffers = 0;
  for (int n = 0; n < PAGES; n++)
    buffers += pool.table[n].memory != NULL;
  CHECK(account.allocated == buffers << BUFFER_ORDER);
  CHECK(pool.hits + pool.misses == THREADS * lookups);
  printf("%lu lookups: %lu hits, %lu misses, %lu buffers given up under pressure, %lu in the pool\n",
         THREADS * lookups, pool.hits, pool.misses, pool.given_up, (unsigned long)buffers);
  CHECK(fw_arena_close(pool.arena) == FW_OK);
  return 0;
}
