// Given places, many at once, zeroes, bad frames, reports, failures on purpose, movers, page sizes.
#include "check.h"

#include <pthread.h>
#include <string.h>

static struct fw_error last(void) {
  struct fw_error error;
  CHECK(fw_last_error(&error) == FW_OK);
  return error;
}

static struct fw_arena *make(uint64_t bytes, uint32_t flags, uint32_t page_bytes) {
  struct fw_options options;
  struct fw_arena *arena;
  CHECK(fw_options_init(&options, bytes) == FW_OK);
  options.flags = flags;
  options.page_bytes = page_bytes;
  CHECK(fw_arena_new(&options, &arena) == FW_OK);
  return arena;
}

static struct fw_cpu *attach(struct fw_arena *arena) {
  struct fw_cpu *cpu;
  CHECK(fw_attach(arena, &cpu) == FW_OK);
  return cpu;
}

static void end(struct fw_arena *arena, struct fw_cpu *cpu, uint64_t free) {
  struct fw_account account;
  CHECK(fw_drain(cpu) == FW_OK && fw_verify(arena, &account) == FW_OK && account.free == free);
  CHECK(fw_detach(cpu) == FW_OK && fw_arena_close(arena) == FW_OK);
}

static void places(uint32_t flags) {
  struct fw_arena *arena = make(16 << 20, flags, 0);
  struct fw_cpu *cpu = attach(arena);
  CHECK(fw_alloc_at(cpu, 640, 3) == FW_OK);
  CHECK(fw_alloc_at(cpu, 645, 0) == FW_ERR_BUSY && last().why == FW_WHY_IN_USE && last().other_pfn == 640);
  CHECK(last().other_order == 3 && last().pfn == 645);
  CHECK(fw_alloc_at(cpu, 641, 1) == FW_ERR_ARGUMENT && last().why == FW_WHY_MISALIGNED);
  CHECK(fw_alloc_at(cpu, 4096, 0) == FW_ERR_ARGUMENT && last().why == FW_WHY_FOREIGN);
  CHECK(fw_alloc_at(cpu, 0, 11) == FW_ERR_ARGUMENT && fw_alloc_at(NULL, 0, 0) == FW_ERR_NULL);
  CHECK(fw_alloc_contig(cpu, 600, 100) == FW_ERR_BUSY && last().why == FW_WHY_IN_USE && last().other_pfn == 640);
  CHECK(fw_free(cpu, 640, 3) == FW_OK);
  CHECK(fw_alloc_contig(cpu, 600, 0) == FW_ERR_ARGUMENT && fw_alloc_contig(cpu, UINT64_MAX, 2) == FW_ERR_ARGUMENT);
  CHECK(fw_alloc_contig(cpu, 700, 1400) == FW_OK);
  CHECK(fw_alloc_at(cpu, 1024, 9) == FW_ERR_BUSY);
  CHECK(fw_free_contig(cpu, 700, 1400) == FW_OK && fw_free_contig(cpu, 700, 1400) == FW_ERR_REFUSED);

  // Runs: of any length, freed in any parts, and why there are no more frames.
  static struct fw_run runs[5000];
  CHECK(fw_alloc_runs(cpu, 512, FW_MOVABLE, runs, 1) == 1 && runs[0].pages == 512);
  CHECK(fw_free_range(cpu, runs[0].pfn, 511) == FW_OK && fw_free(cpu, runs[0].pfn + 511, 0) == FW_OK);
  CHECK(fw_free_range(cpu, runs[0].pfn, 1) == FW_ERR_REFUSED && fw_free_range(cpu, 0, 0) == FW_ERR_ARGUMENT);
  size_t count = fw_alloc_runs(cpu, 5000, FW_MOVABLE, runs, 5000);
  uint64_t all_of_them = 0;
  for (size_t n = 0; n < count; n++) {
    CHECK(n == 0 || runs[n].pfn > runs[n - 1].pfn + runs[n - 1].pages);
    all_of_them += runs[n].pages;
    CHECK(fw_free_range(cpu, runs[n].pfn, runs[n].pages) == FW_OK);
  }
  CHECK(all_of_them == 4096 && last().status == FW_ERR_NO_MEMORY);
  CHECK(fw_alloc_runs(cpu, 1, FW_MOVABLE, NULL, 1) == 0 && last().status == FW_ERR_NULL);
  CHECK(fw_alloc_runs(cpu, 1, 9, runs, 1) == 0 && last().status == FW_ERR_ARGUMENT);

  // Bulk: as many as there are, and why there are no more.
  static uint64_t frames[5000];
  CHECK(fw_alloc_bulk(cpu, 0, FW_MOVABLE, frames, 1000) == 1000 && fw_free_bulk(cpu, 0, frames, 1000) == 1000);
  CHECK(fw_alloc_bulk(cpu, 3, FW_UNMOVABLE, frames, 5000) == 512 && last().status == FW_ERR_NO_MEMORY);
  static unsigned char seen[4096];
  memset(seen, 0, sizeof seen);
  for (int n = 0; n < 512; n++)
    CHECK(frames[n] % 8 == 0 && frames[n] < 4096 && !seen[frames[n]]++);
  uint64_t twice = frames[100];
  frames[101] = twice;
  CHECK(fw_free_bulk(cpu, 3, frames, 512) == 511);
  CHECK(last().status == FW_ERR_REFUSED && last().pfn == twice && last().why == FW_WHY_NOT_ALLOCATED);
  CHECK(fw_alloc_bulk(cpu, 11, 0, frames, 1) == 0 && fw_free_bulk(cpu, 11, frames, 1) == 0);
  end(arena, cpu, 4088);
}

static void zeroes(uint32_t flags) {
  struct fw_arena *arena = make(8 << 20, flags, 0);
  struct fw_cpu *cpu = attach(arena);
  for (uint32_t order = 0; order < 4; order++) {
    char *block = fw_alloc_pages(cpu, order, FW_MOVABLE);
    size_t bytes = (size_t)FW_PAGE_BYTES << order;
    memset(block, 7, bytes);
    CHECK(fw_free_pages(cpu, block, order) == FW_OK);
    uint64_t pfn = fw_alloc_zeroed(cpu, order, FW_MOVABLE);
    CHECK(pfn != FW_NO_FRAME);
    block = fw_address(arena, pfn);
    for (size_t n = 0; n < bytes; n++)
      CHECK(block[n] == 0);
    CHECK(fw_free(cpu, pfn, order) == FW_OK);
  }
  CHECK(fw_alloc_zeroed(cpu, 0, 9) == FW_NO_FRAME && last().status == FW_ERR_ARGUMENT);
  end(arena, cpu, 2048);
}

static void bad_frames(void) {
  struct fw_arena *arena = make(16 << 20, 0, 0);
  struct fw_cpu *cpu = attach(arena);
  struct fw_hwpoisoned what;
  struct fw_stats stats;
  CHECK(fw_hwpoison(cpu, 77, &what) == FW_OK && what.what == FW_HWPOISON_WITHDRAWN);
  CHECK(fw_hwpoison(cpu, 77, NULL) == FW_ERR_REFUSED && fw_hwpoison(cpu, 1 << 30, NULL) == FW_ERR_ARGUMENT);
  CHECK(fw_alloc_at(cpu, 77, 0) == FW_ERR_BUSY);
  CHECK(fw_alloc_at(cpu, 512, 2) == FW_OK && fw_hwpoison(cpu, 513, &what) == FW_OK);
  CHECK(what.what == FW_HWPOISON_IN_USE && what.pfn == 512 && what.order == 2);
  CHECK(fw_stat(arena, &stats) == FW_OK && stats.hwpoisoned == 2);
  CHECK(fw_free(cpu, 512, 2) == FW_OK && fw_alloc_at(cpu, 513, 0) == FW_ERR_BUSY && fw_alloc_at(cpu, 512, 0) == FW_OK);
  CHECK(fw_free(cpu, 512, 0) == FW_OK);
  CHECK(fw_unpoison(cpu, 77) == FW_OK && fw_unpoison(cpu, 513) == FW_OK && fw_unpoison(cpu, 513) == FW_ERR_REFUSED);
  end(arena, cpu, 4096);
}

static uint32_t reported(void *context, const struct fw_block *blocks, size_t count) {
  for (size_t n = 0; n < count; n++)
    *(uint64_t *)context += UINT64_C(1) << blocks[n].order;
  return 1;
}

static void reports(void) {
  struct fw_arena *arena = make(64 << 20, FW_FREE_REPORTING, 0);
  struct fw_cpu *cpu = attach(arena);
  uint64_t pages = 0;
  CHECK(fw_report_free(cpu, FW_PAGEBLOCK_ORDER, reported, &pages) == pages && pages > 8000);
  CHECK(fw_report_free(cpu, FW_PAGEBLOCK_ORDER, reported, &pages) == 0);
  CHECK(fw_report_free(cpu, 0, NULL, NULL) == 0 && last().status == FW_ERR_NULL);
  end(arena, cpu, 16384);
  arena = make(8 << 20, 0, 0);
  cpu = attach(arena);
  CHECK(fw_report_free(cpu, FW_PAGEBLOCK_ORDER, reported, &pages) == 0 && last().status == FW_ERR_SETUP);
  end(arena, cpu, 2048);
}

static void failures(void) {
  struct fw_arena *arena = make(8 << 20, FW_FAULT_INJECTION, 0);
  struct fw_cpu *cpu = attach(arena);
  struct fw_fault third = {.probability = 100, .interval = 3, .times = 1};
  struct fw_fault_counts counts;
  CHECK(fw_inject(arena, &third) == FW_OK);
  for (int n = 1; n <= 10; n++) {
    uint64_t pfn = fw_alloc_page(cpu);
    CHECK((pfn == FW_NO_FRAME) == (n == 3));
    if (n == 3)
      CHECK(last().status == FW_ERR_NO_MEMORY && last().why == FW_WHY_INJECTED);
    else
      CHECK(fw_free_page(cpu, pfn) == FW_OK);
  }
  CHECK(fw_injected(arena, &counts) == FW_OK && counts.failed == 1 && counts.seen == 10);
  struct fw_fault no_order = {.orders = 1u << 11, .probability = 100}, no_percent = {.probability = 101};
  CHECK(fw_inject(arena, &no_order) == FW_ERR_ARGUMENT && fw_inject(arena, &no_percent) == FW_ERR_ARGUMENT);
  CHECK(fw_inject(arena, NULL) == FW_OK && fw_injected(arena, NULL) == FW_ERR_NULL);
  end(arena, cpu, 2048);
  arena = make(8 << 20, 0, 0);
  CHECK(fw_inject(arena, &third) == FW_ERR_SETUP && fw_arena_close(arena) == FW_OK);
}

// Who has which frame, and the mover that keeps it up to date.
struct owner {
  struct fw_arena *arena;
  uint64_t frames[4096];
  unsigned at[4096], count, moved;
};

static uint32_t move(void *context, uint64_t from, uint64_t to, uint32_t order) {
  struct owner *owner = context;
  unsigned at = owner->at[from];
  if (order != 0 || at >= owner->count || owner->frames[at] != from)
    return 0;
  memcpy(fw_address(owner->arena, to), fw_address(owner->arena, from), FW_PAGE_BYTES);
  owner->frames[at] = to;
  owner->at[to] = at;
  owner->moved++;
  return 1;
}

static void movers(uint64_t (*compact)(struct fw_cpu *, uint32_t)) {
  static struct owner owner;
  memset(&owner, 0, sizeof owner);
  struct fw_arena *arena = owner.arena = make(16 << 20, 0, 0);
  struct fw_cpu *cpu = attach(arena);
  CHECK(fw_set_migrate(arena, NULL, NULL) == FW_ERR_NULL && fw_set_migrate(arena, move, &owner) == FW_OK);
  CHECK(fw_set_migrate(arena, move, &owner) == FW_ERR_BUSY);
  // Every eighth frame stays, scattered over everything: no large block is free.
  static uint64_t all[4096];
  CHECK(fw_alloc_bulk(cpu, 0, FW_MOVABLE, all, 4096) == 4096);
  for (unsigned n = 0; n < 4096; n++)
    if (all[n] % 8 == 3) {
      owner.at[all[n]] = owner.count;
      owner.frames[owner.count++] = all[n];
      *(uint64_t *)fw_address(arena, all[n]) = owner.count;
    } else
      CHECK(fw_free(cpu, all[n], 0) == FW_OK);
  CHECK(owner.count == 512);
  CHECK(fw_alloc_contig(cpu, 1024, 512) == FW_OK && owner.moved >= 64);
  CHECK(fw_free_contig(cpu, 1024, 512) == FW_OK);
  unsigned before = owner.moved;
  CHECK(compact(cpu, 0) == owner.moved - before && owner.moved > before);
  CHECK(compact(cpu, 7) == 0 && last().status == FW_ERR_ARGUMENT && compact(NULL, 0) == 0);
  uint64_t large = fw_alloc(cpu, FW_MAX_ORDER, FW_MOVABLE);
  CHECK(large != FW_NO_FRAME && fw_free(cpu, large, FW_MAX_ORDER) == FW_OK);
  for (unsigned n = 0; n < owner.count; n++) {
    CHECK(*(uint64_t *)fw_address(arena, owner.frames[n]) == n + 1);
    CHECK(fw_free(cpu, owner.frames[n], 0) == FW_OK);
  }
  end(arena, cpu, 4096);
}

static void page_sizes(void) {
  for (uint32_t bytes = 4096; bytes <= 65536; bytes *= 2) {
    struct fw_arena *arena = make(UINT64_C(4096) * bytes, FW_GUARD_PAGES, bytes);
    struct fw_cpu *cpu = attach(arena);
    CHECK(fw_page_bytes(arena) == bytes && fw_pages(arena) == 4096);
    char *first = fw_address(arena, 0);
    char *block = fw_alloc_pages(cpu, 2, FW_MOVABLE);
    CHECK((uintptr_t)block % (4 * bytes) == 0 && fw_address(arena, 5) == first + 5 * (size_t)bytes);
    memset(block, 1, 4 * (size_t)bytes);
    CHECK(fw_frame_at(arena, block + 4 * (size_t)bytes - 1) == fw_frame_at(arena, block) + 3);
    CHECK(fw_free_pages(cpu, block, 2) == FW_OK);
    end(arena, cpu, 4096);
  }
  struct fw_options options;
  struct fw_arena *arena;
  struct fw_shm *shm;
  CHECK(fw_options_init(&options, 1 << 20) == FW_OK);
  options.page_bytes = 5000;
  char text[200];
  CHECK(fw_arena_new(&options, &arena) == FW_ERR_SETUP);
  CHECK(fw_last_error_text(text, sizeof text) > 0 && strstr(text, "pages of 5000 bytes"));
  options.page_bytes = 65536;
  CHECK(fw_shm_create(&options, NULL, &shm) == FW_ERR_ARGUMENT);
  options.page_bytes = 0;
  options.reserved[3] = 1;
  CHECK(fw_arena_new(&options, &arena) == FW_ERR_ARGUMENT);
  options.reserved[3] = 0;
  options.flags = FW_FREE_LISTS | FW_FREE_MAPS;
  CHECK(fw_arena_new(&options, &arena) == FW_ERR_ARGUMENT && fw_page_bytes(NULL) == 0);
}

static void compact(void) {
  // A terabyte: nothing of it is written before it is needed.
  struct fw_options options;
  struct fw_arena *arena;
  CHECK(fw_options_init(&options, UINT64_C(1) << 40) == FW_OK);
  options.backing = FW_BACKING_DESCRIBED;
  options.flags = FW_COMPACT;
  CHECK(fw_arena_new(&options, &arena) == FW_OK);
  struct fw_cpu *cpu = attach(arena);
  uint64_t last_frame = (UINT64_C(1) << 28) - 1;
  CHECK(fw_alloc_at(cpu, last_frame, 0) == FW_OK && fw_free(cpu, last_frame, 1) == FW_ERR_REFUSED);
  CHECK(fw_free(cpu, last_frame - 1, 1) == FW_ERR_REFUSED && fw_free(cpu, last_frame, 0) == FW_OK);
  CHECK(fw_free(cpu, last_frame, 0) == FW_ERR_REFUSED && last().why == FW_WHY_NOT_ALLOCATED);
  CHECK(fw_hwpoison(cpu, 5, NULL) == FW_ERR_REFUSED);
  CHECK(fw_detach(cpu) == FW_OK && fw_arena_close(arena) == FW_OK);
  options.flags = FW_COMPACT | FW_POISON;
  CHECK(fw_arena_new(&options, &arena) == FW_ERR_SETUP);
  options.flags = FW_COMPACT | FW_FREE_LISTS;
  CHECK(fw_arena_new(&options, &arena) == FW_ERR_ARGUMENT);
}

static void trims(void) {
  uint32_t keep[] = {0, FW_INIT_ON_FREE, FW_POISON, FW_LOCK_MEMORY};
  for (int n = 0; n < 4; n++) {
    struct fw_arena *arena = make(32 << 20, FW_PREFAULT | keep[n], 0);
    struct fw_cpu *cpu = attach(arena);
    uint64_t gone = fw_trim(cpu, FW_PAGEBLOCK_ORDER);
    CHECK((n ? gone == 0 : gone >= 4096) && fw_trim(cpu, FW_PAGEBLOCK_ORDER) == 0);
    end(arena, cpu, 8192);
  }
}

struct wait {
  struct fw_arena *arena;
  struct fw_cpu *cpu;
  uint64_t left;
};

static void idle(void *context) {
  struct wait *wait = context;
  CHECK(fw_alloc_page(wait->cpu) == FW_NO_FRAME && last().status == FW_ERR_HANDLE);
  CHECK(fw_drain_wait(wait->arena, 0, &wait->left) == FW_OK);
}

static void *drain(void *context) {
  struct wait *wait = context;
  CHECK(fw_drain_wait(wait->arena, 1000000, &wait->left) == FW_ERR_BUSY && wait->left > 0);
  return NULL;
}

static void idle_threads(void) {
  struct wait wait = {make(8 << 20, 0, 0), NULL, 0};
  pthread_t thread;
  wait.cpu = attach(wait.arena);
  CHECK(fw_free_page(wait.cpu, fw_alloc_page(wait.cpu)) == FW_OK);
  CHECK(pthread_create(&thread, NULL, drain, &wait) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(fw_free_page(wait.cpu, fw_alloc_page(wait.cpu)) == FW_OK);
  CHECK(fw_idle(wait.cpu, idle, &wait) == FW_OK && wait.left == 0);
  CHECK(fw_idle(wait.cpu, NULL, NULL) == FW_ERR_NULL && fw_idle(NULL, idle, NULL) == FW_ERR_NULL);
  CHECK(fw_free_page(wait.cpu, fw_alloc_page(wait.cpu)) == FW_OK);
  end(wait.arena, wait.cpu, 2048);
}

int main(void) {
  places(FW_FREE_MAPS);
  places(FW_FREE_LISTS);
  places(FW_COMPACT);
  compact();
  zeroes(0);
  zeroes(FW_INIT_ON_FREE);
  bad_frames();
  reports();
  failures();
  movers(fw_compact);
  movers(fw_compact_proactively);
  page_sizes();
  trims();
  idle_threads();
  puts("given places are as the header says");
  return 0;
}
