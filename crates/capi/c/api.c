// Every function of the library, and every error that it promises.
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct fw_error last(void) {
  struct fw_error error;
  CHECK(fw_last_error(&error) == FW_OK);
  return error;
}

static int last_says(const char *what) {
  char text[300];
  CHECK(fw_last_error_text(text, sizeof text) == strlen(text));
  return strstr(text, what) != NULL;
}

static struct fw_arena *make(uint64_t bytes, uint32_t cpus, uint32_t flags) {
  struct fw_options options;
  struct fw_arena *arena;
  CHECK(fw_options_init(&options, bytes) == FW_OK);
  options.cpus = cpus;
  options.flags = flags;
  CHECK(fw_arena_new(&options, &arena) == FW_OK);
  return arena;
}

static void options_are_checked(void) {
  struct fw_options options;
  struct fw_arena *arena = (struct fw_arena *)1;
  CHECK(fw_options_init(NULL, 0) == FW_ERR_NULL);
  CHECK(fw_options_init(&options, 0) == FW_OK);
  CHECK(fw_arena_new(&options, &arena) == FW_ERR_SETUP && arena == NULL);
  CHECK(fw_arena_new(NULL, &arena) == FW_ERR_NULL && fw_arena_new(&options, NULL) == FW_ERR_NULL);
  CHECK(fw_options_init(&options, 4 << 20) == FW_OK);
  // Of another header: one that ends behind `bytes`, and one that has more than this library knows.
  struct {
    struct fw_options known;
    uint32_t later[2];
  } other = {options, {0, 0}};
  struct { uint32_t size; int accepted; } headers[] = {
      {15, 0}, {16, 1}, {48, 1}, {sizeof options - 1, 1}, {sizeof other, 1}, {sizeof other, 0},
      {UINT32_MAX, 0}};
  for (size_t n = 0; n < sizeof headers / sizeof *headers; n++) {
    other.known.size = headers[n].size;
    other.later[1] = n == 5;
    fw_status status = fw_arena_new(&other.known, &arena);
    CHECK(status == (headers[n].accepted ? FW_OK : FW_ERR_ARGUMENT));
    CHECK(!headers[n].accepted || (fw_pages(arena) == 1024 && fw_arena_close(arena) == FW_OK));
  }
  options.backing = 77;
  CHECK(fw_arena_new(&options, &arena) == FW_ERR_ARGUMENT);
  options.backing = FW_BACKING_CALLER;
  CHECK(fw_arena_new(&options, &arena) == FW_ERR_NULL);
  options.backing = FW_BACKING_BASE;
  options.preset = 1;
  CHECK(fw_arena_new(&options, &arena) == FW_ERR_ARGUMENT);
  options.preset = FW_PRESET_LINUX_6_7;
  options.flags = 1u << 31;
  CHECK(fw_arena_new(&options, &arena) == FW_ERR_ARGUMENT);
  options.flags = 0;
  options.base = 5;
  CHECK(fw_arena_new(&options, &arena) == FW_ERR_SETUP);
  char text[200];
  CHECK(last_says("not a multiple of 1024"));
  CHECK(fw_last_error_text(text, 5) > 5 && strlen(text) == 4);
  CHECK(fw_last_error_text(NULL, 0) > 0);
  options.base = 0;
  options.bytes = UINT64_C(200) << 40; // more than the address space
  CHECK(fw_arena_new(&options, &arena) == FW_ERR_SYSTEM && last().system != 0);
}

static void handles_are_checked(void) {
  struct fw_arena *arena = make(8 << 20, 2, 0);
  struct fw_cpu *cpu, *second, *third;
  CHECK(fw_attach(NULL, &cpu) == FW_ERR_NULL && fw_attach(arena, NULL) == FW_ERR_NULL);
  CHECK(fw_attach(arena, &cpu) == FW_OK && fw_attach(arena, &second) == FW_OK);
  CHECK(fw_cpu_number(cpu) != fw_cpu_number(second) && fw_cpu_count(arena) == 2);
  CHECK(fw_attach(arena, &third) == FW_ERR_NO_CPU && third == NULL);
  CHECK(fw_attach_cpu(arena, 2, &third) == FW_ERR_ARGUMENT);
  CHECK(fw_detach(second) == FW_OK && fw_detach(second) == FW_ERR_HANDLE && fw_cpu_number(second) == UINT32_MAX);
  CHECK(fw_alloc(second, 0, FW_MOVABLE) == FW_NO_FRAME && last().status == FW_ERR_HANDLE);
  CHECK(fw_alloc(NULL, 0, FW_MOVABLE) == FW_NO_FRAME && last().status == FW_ERR_NULL);
  CHECK(fw_alloc((struct fw_cpu *)arena, 0, FW_MOVABLE) == FW_NO_FRAME && last().status == FW_ERR_HANDLE);
  CHECK(fw_attach((struct fw_arena *)cpu, &third) == FW_ERR_HANDLE);
  CHECK(fw_arena_close(arena) == FW_ERR_BUSY);
  CHECK(fw_detach(cpu) == FW_OK && fw_arena_close(arena) == FW_OK && fw_arena_close(arena) == FW_ERR_HANDLE);
  CHECK(fw_pages(arena) == 0 && fw_first_frame(arena) == FW_NO_FRAME && fw_address(arena, 0) == NULL);
  CHECK(fw_arena_close(NULL) == FW_ERR_NULL);
}

static void blocks(void) {
  struct fw_arena *arena = make(16 << 20, 2, 0);
  struct fw_cpu *cpu;
  CHECK(fw_attach(arena, &cpu) == FW_OK);
  CHECK(fw_pages(arena) == 4096 && fw_first_frame(arena) == 0);
  for (uint32_t order = 0; order <= FW_MAX_ORDER; order++) {
    for (uint32_t type = FW_UNMOVABLE; type <= FW_RECLAIMABLE; type++) {
      uint64_t pfn = fw_alloc(cpu, order, type);
      CHECK(pfn != FW_NO_FRAME && pfn % (UINT64_C(1) << order) == 0);
      unsigned char *memory = fw_address(arena, pfn);
      size_t bytes = (size_t)FW_PAGE_BYTES << order;
      CHECK((uintptr_t)memory % bytes == 0 && fw_frame_at(arena, memory + bytes - 1) == pfn + (1u << order) - 1);
      memory[0] = memory[bytes - 1] = 1;
      CHECK(fw_free(cpu, pfn, order) == FW_OK);
      CHECK(fw_free(cpu, pfn, order) == FW_ERR_REFUSED);
      CHECK(last().why == FW_WHY_NOT_ALLOCATED || last().why == FW_WHY_INSIDE);
    }
  }
  CHECK(fw_alloc(cpu, 11, FW_MOVABLE) == FW_NO_FRAME && last().status == FW_ERR_ARGUMENT);
  CHECK(fw_alloc(cpu, 256, FW_MOVABLE) == FW_NO_FRAME && last().status == FW_ERR_ARGUMENT);
  CHECK(fw_alloc(cpu, 0, 3) == FW_NO_FRAME && last().status == FW_ERR_ARGUMENT);

  uint64_t pfn = fw_alloc(cpu, 3, FW_MOVABLE);
  CHECK(fw_free(cpu, pfn, 2) == FW_ERR_REFUSED && last().why == FW_WHY_WRONG_ORDER && last().other_order == 3);
  CHECK(fw_free(cpu, pfn + 1, 0) == FW_ERR_REFUSED && last().why == FW_WHY_INSIDE && last().other_pfn == pfn);
  CHECK(fw_free(cpu, 1 << 30, 0) == FW_ERR_REFUSED && last().why == FW_WHY_FOREIGN);
  CHECK(fw_free(cpu, pfn, 11) == FW_ERR_ARGUMENT);
  CHECK(fw_split(cpu, pfn, 3, 4) == FW_ERR_ARGUMENT && fw_split(cpu, pfn, 3, 1) == FW_OK);
  for (int n = 0; n < 4; n++)
    CHECK(fw_free(cpu, pfn + 2u * (unsigned)n, 1) == FW_OK);
  CHECK(fw_split(cpu, pfn, 3, 1) == FW_ERR_REFUSED && last().why != FW_WHY_NONE && last_says("cannot split order 3"));

  char *pages = fw_alloc_pages(cpu, 2, FW_MOVABLE);
  CHECK(pages && fw_free_pages(cpu, pages + 8, 2) == FW_ERR_ARGUMENT);
  CHECK(fw_free_pages(cpu, &pfn, 2) == FW_ERR_ARGUMENT);
  CHECK(fw_free_pages(cpu, pages, 2) == FW_OK && fw_free_pages(cpu, NULL, 2) == FW_OK);

  static uint64_t frames[5000];
  size_t got = fw_alloc_bulk(cpu, 0, FW_MOVABLE, frames, 5000);
  CHECK(got == 4096 && last().status == FW_ERR_NO_MEMORY && last().zones_tried == 1);
  CHECK(last().free == 0 && last().largest_order == -1);
  struct fw_shortfall lacks[2] = {{.free = 7}, {.free = 7}};
  CHECK(fw_explain(cpu, 0, FW_MOVABLE, lacks, 2) == 1 && lacks[0].free == 0 && lacks[0].largest_order == -1);
  CHECK(lacks[1].free == 7 && fw_explain(cpu, 0, FW_MOVABLE, NULL, 2) == 1 && fw_explain(cpu, 11, FW_MOVABLE, lacks, 2) == 0);
  struct fw_stats stats;
  CHECK(fw_stat(arena, &stats) == FW_OK && stats.managed == 4096 && stats.allocated == 4096 && stats.refills > 0);
  frames[10] = frames[9];
  CHECK(fw_free_bulk(cpu, 0, frames, got) == got - 1 && last().why == FW_WHY_NOT_ALLOCATED);
  CHECK(fw_free_bulk(cpu, 0, NULL, 1) == 0 && fw_alloc_bulk(cpu, 0, 0, NULL, 1) == 0);
  CHECK(fw_drain(cpu) == FW_OK && fw_answer(cpu) == FW_OK);
  struct fw_account account;
  CHECK(fw_verify(arena, &account) == FW_OK && account.allocated == 1 && account.free == 4095);

  struct fw_zone zone;
  CHECK(fw_zones(arena) == 1 && fw_snapshot(arena, 0, &zone) == FW_OK && fw_snapshot(arena, 1, &zone) == FW_ERR_ARGUMENT);
  uint64_t sum = 0;
  for (int order = 0; order < FW_ORDERS; order++)
    sum += zone.free_blocks[order] << order;
  CHECK(zone.managed == 4096 && zone.free == sum && sum == 4095 && zone.mark_low >= zone.mark_min);
  char text[4000];
  CHECK(fw_text(arena, FW_TEXT_BUDDYINFO, text, sizeof text) == strlen(text) && strstr(text, "Node 0, zone   Normal"));
  CHECK(fw_text(arena, FW_TEXT_VMSTAT, text, sizeof text) && strstr(text, "nr_free_pages 4095"));
  CHECK(fw_text(arena, FW_TEXT_ZONEINFO, NULL, 0) > 100 && fw_text(arena, 9, text, sizeof text) == 0);

  uint64_t gone = 0;
  CHECK(fw_offline(cpu, 1024, 1024, &gone) == (frames[10] / 1024 == 1 ? FW_ERR_BUSY : FW_OK));
  if (gone) {
    CHECK(gone == 1024 && fw_stat(arena, &stats) == FW_OK && stats.managed == 3072);
    CHECK(fw_free(cpu, 1024, 0) == FW_ERR_REFUSED && last().why == FW_WHY_FOREIGN);
    CHECK(fw_alloc_at(cpu, 1024, 0) == FW_ERR_ARGUMENT && last().why == FW_WHY_FOREIGN);
    CHECK(fw_online(arena, 1024, 1024) == FW_OK && fw_online(arena, 1024, 1024) == FW_ERR_ARGUMENT);
    CHECK(last().pfn == 1024);
  }
  CHECK(fw_offline(cpu, 1, 1024, &gone) == FW_ERR_ARGUMENT);
  CHECK(fw_detach(cpu) == FW_OK && fw_drain_all(arena) == 0 && fw_arena_close(arena) == FW_OK);
}

static void callers_memory(void) {
  // A memfd: the file keeps what is written to the arena's pages.
  int fd = memfd_create("api", 0);
  size_t bytes = 8 << 20;
  CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(memory != MAP_FAILED);
  struct fw_options options;
  struct fw_arena *arena;
  struct fw_cpu *cpu;
  CHECK(fw_options_init(&options, bytes) == FW_OK);
  options.backing = FW_BACKING_CALLER;
  options.memory = (char *)memory + 1;
  CHECK(fw_arena_new(&options, &arena) == FW_ERR_SETUP);
  options.memory = memory;
  CHECK(fw_arena_new(&options, &arena) == FW_OK && fw_attach(arena, &cpu) == FW_OK);
  char *page = fw_alloc_pages(cpu, 0, FW_MOVABLE);
  CHECK(page >= (char *)memory && page < (char *)memory + bytes);
  strcpy(page, "kept");
  char back[5];
  CHECK(pread(fd, back, 5, page - (char *)memory) == 5 && !strcmp(back, "kept"));
  CHECK(fw_detach(cpu) == FW_OK && fw_arena_close(arena) == FW_OK);
  CHECK(munmap(memory, bytes) == 0 && close(fd) == 0);

  CHECK(fw_options_init(&options, UINT64_C(1) << 40) == FW_OK);
  options.backing = FW_BACKING_DESCRIBED;
  CHECK(fw_arena_new(&options, &arena) == FW_OK && fw_attach(arena, &cpu) == FW_OK);
  CHECK(fw_alloc(cpu, 10, FW_MOVABLE) != FW_NO_FRAME && fw_alloc_pages(cpu, 0, FW_MOVABLE) == NULL);
  CHECK(last().status == FW_ERR_SETUP && fw_address(arena, 0) == NULL);
  CHECK(fw_detach(cpu) == FW_OK && fw_arena_close(arena) == FW_OK);

  // Pages of 2 MiB: got, or an error that says what lacks.
  CHECK(fw_options_init(&options, 4 << 20) == FW_OK);
  options.backing = FW_BACKING_HUGETLB;
  fw_status status = fw_arena_new(&options, &arena);
  CHECK(status == FW_OK ? fw_arena_close(arena) == FW_OK : status == FW_ERR_SYSTEM && last().system != 0);
  struct fw_shm *shm;
  status = fw_shm_create(&options, NULL, &shm);
  CHECK(status == FW_OK ? fw_shm_close(shm) == FW_OK
                        : last().system == ENOMEM && last_says("`sysctl vm.nr_hugepages`"));
}

static struct fw_cpu *of_the_main_thread;

static void *another_thread(void *arena) {
  CHECK(fw_alloc(of_the_main_thread, 0, FW_MOVABLE) == FW_NO_FRAME && last().status == FW_ERR_THREAD);
  CHECK(fw_detach(of_the_main_thread) == FW_ERR_THREAD);
  struct fw_cpu *cpu;
  CHECK(fw_attach(arena, &cpu) == FW_OK);
  uint64_t pfn = fw_alloc(cpu, 0, FW_MOVABLE);
  CHECK(pfn != FW_NO_FRAME);
  CHECK(fw_free(cpu, pfn, 0) == FW_OK);
  return cpu; // not detached: the end of the thread does
}

static void threads_and_forks(void) {
  struct fw_arena *arena = make(8 << 20, 2, 0);
  CHECK(fw_attach(arena, &of_the_main_thread) == FW_OK);
  for (int n = 0; n < 5; n++) {
    pthread_t thread;
    void *left;
    CHECK(pthread_create(&thread, NULL, another_thread, arena) == 0 && pthread_join(thread, &left) == 0);
    CHECK(fw_detach(left) == FW_ERR_HANDLE);
    struct fw_stats stats;
    CHECK(fw_stat(arena, &stats) == FW_OK && stats.on_lists == 0 && stats.free == 2048);
  }
  uint64_t pfn = fw_alloc(of_the_main_thread, 0, FW_MOVABLE);
  pid_t child = fork();
  if (child == 0) {
    int refused = fw_alloc(of_the_main_thread, 0, FW_MOVABLE) == FW_NO_FRAME && last().status == FW_ERR_HANDLE;
    struct fw_cpu *cpu;
    refused &= fw_attach(arena, &cpu) == FW_ERR_HANDLE && fw_pages(arena) == 0;
    // An arena of the child's own works.
    struct fw_arena *own = make(4 << 20, 1, 0);
    refused &= fw_attach(own, &cpu) == FW_OK && fw_alloc(cpu, 0, FW_MOVABLE) != FW_NO_FRAME && fw_detach(cpu) == FW_OK;
    _exit(refused ? 0 : 1);
  }
  int status;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(fw_free(of_the_main_thread, pfn, 0) == FW_OK);
  CHECK(fw_detach(of_the_main_thread) == FW_OK && fw_arena_close(arena) == FW_OK);
}

struct balloon {
  uint64_t pages, calls;
};

static void inflated(void *context, uint64_t pfn, uint32_t order) {
  struct balloon *balloon = context;
  (void)pfn;
  balloon->pages += UINT64_C(1) << order;
  balloon->calls++;
}

static void deflated(void *context, uint64_t pfn, uint32_t order) {
  struct balloon *balloon = context;
  (void)pfn;
  balloon->pages -= UINT64_C(1) << order;
}

static uint64_t nothing(void *context, const struct fw_ask *ask, struct fw_release *to) {
  CHECK(ask->target > 0 && ask->end == 4096 && fw_release_free(to, 1 << 30, 0) == FW_ERR_REFUSED);
  (*(int *)context)++;
  return 0;
}

static void balloons(void) {
  struct fw_arena *arena = make(16 << 20, 2, 0);
  struct fw_cpu *cpu;
  struct balloon balloon = {0, 0};
  int asked = 0;
  CHECK(fw_attach(arena, &cpu) == FW_OK);
  CHECK(fw_set_balloon(arena, inflated, deflated, &balloon, 1) == FW_OK);
  CHECK(fw_set_balloon(arena, inflated, deflated, &balloon, 1) == FW_ERR_BUSY);
  CHECK(fw_set_reclaim(arena, NULL, NULL) == FW_ERR_NULL && fw_set_reclaim(arena, nothing, &asked) == FW_OK);
  CHECK(fw_balloon_inflate(cpu, 3000) == 3000 && balloon.pages == 3000 && asked == 0);
  struct fw_stats stats;
  CHECK(fw_stat(arena, &stats) == FW_OK && stats.in_balloon == 3000 && stats.allocated == 3000);
  CHECK(fw_balloon_inflate(cpu, 10000) == 1096 && balloon.pages == 4096);
  CHECK(fw_balloon_deflate(cpu, 500) >= 500 && balloon.pages <= 3596);
  // More than is free: the balloon gives way.
  static uint64_t frames[2000];
  CHECK(fw_alloc_bulk(cpu, 0, FW_MOVABLE, frames, 2000) == 2000 && balloon.pages <= 2096 && asked > 0);
  CHECK(fw_free_bulk(cpu, 0, frames, 2000) == 2000);
  CHECK(fw_balloon_deflate(cpu, 5000) <= 2096 && balloon.pages == 0);
  // A large block, too: of the balloon's, one that is large enough.
  CHECK(fw_drain(cpu) == FW_OK && fw_balloon_inflate(cpu, 2047) == 2047 && fw_balloon_inflate(cpu, 4096) == 2049);
  for (uint32_t order = 10; order >= 9; order--) {
    uint64_t large = fw_alloc(cpu, order, FW_MOVABLE);
    CHECK(large != FW_NO_FRAME && balloon.pages >= 4096 - 2048 && fw_free(cpu, large, order) == FW_OK);
    CHECK(fw_balloon_inflate(cpu, 4096) > 0 && balloon.pages == 4096);
  }
  CHECK(fw_balloon_deflate(cpu, 4096) == 4096);
  CHECK(fw_detach(cpu) == FW_OK);
  struct fw_account account;
  CHECK(fw_verify(arena, &account) == FW_OK && account.free == 4096);
  CHECK(fw_run_background(arena, 0) == FW_ERR_ARGUMENT && last_says("no CPU is kept for work in the background"));
  CHECK(fw_arena_close(arena) == FW_OK);
}

struct closer {
  struct fw_arena *arena;
  struct fw_cpu *cpu;
  int calls;
};

// What a call that is under way uses cannot be closed from the function that it calls.
static void try_to_close(struct closer *closer) {
  CHECK(fw_detach(closer->cpu) == FW_ERR_BUSY && fw_arena_close(closer->arena) == FW_ERR_BUSY);
  closer->calls++;
}

static uint64_t closing_reclaimer(void *context, const struct fw_ask *ask, struct fw_release *to) {
  (void)ask, (void)to;
  try_to_close(context);
  return 0;
}

static void closing_balloon(void *context, uint64_t pfn, uint32_t order) {
  (void)pfn, (void)order;
  try_to_close(context);
}

static uint32_t closing_report(void *context, const struct fw_block *blocks, size_t count) {
  CHECK(blocks != NULL && count > 0);
  try_to_close(context);
  return 1;
}

static void idle(void *context) {
  struct closer *closer = context;
  CHECK(fw_detach(closer->cpu) == FW_ERR_HANDLE && fw_arena_close(closer->arena) == FW_ERR_BUSY);
}

static void fork_and_wait(void *child) {
  int status;
  *(pid_t *)child = fork();
  CHECK(*(pid_t *)child >= 0);
  CHECK(*(pid_t *)child == 0 || (waitpid(*(pid_t *)child, &status, 0) > 0 && status == 0));
}

// A child that is forked while the thread is idle has none of its parent's handles either.
static void a_child_of_an_idle_thread(void) {
  struct fw_arena *arena = make(8 << 20, 2, 0);
  struct fw_cpu *cpu;
  CHECK(fw_attach(arena, &cpu) == FW_OK);
  uint64_t pfn = fw_alloc_page(cpu);
  pid_t child = 1;
  CHECK(fw_idle(cpu, fork_and_wait, &child) == FW_OK);
  if (child == 0) {
    _exit(fw_alloc_page(cpu) == FW_NO_FRAME && last().status == FW_ERR_HANDLE ? 0 : 1);
  }
  CHECK(fw_free_page(cpu, pfn) == FW_OK && fw_detach(cpu) == FW_OK && fw_arena_close(arena) == FW_OK);
}

static void nothing_is_closed_under_a_call(void) {
  struct closer closer = {make(8 << 20, 2, FW_FREE_REPORTING), NULL, 0};
  CHECK(fw_attach(closer.arena, &closer.cpu) == FW_OK);
  CHECK(fw_set_reclaim(closer.arena, closing_reclaimer, &closer) == FW_OK);
  CHECK(fw_set_balloon(closer.arena, closing_balloon, closing_balloon, &closer, 0) == FW_OK);
  CHECK(fw_balloon_inflate(closer.cpu, 8) == 8 && closer.calls > 0);
  CHECK(fw_report_free(closer.cpu, 9, closing_report, &closer) > 0);
  int before = closer.calls;
  while (fw_alloc(closer.cpu, 0, FW_MOVABLE) != FW_NO_FRAME) {
  }
  CHECK(closer.calls > before && last().status == FW_ERR_NO_MEMORY);
  CHECK(fw_idle(closer.cpu, idle, &closer) == FW_OK);
  CHECK(fw_detach(closer.cpu) == FW_OK && fw_arena_close(closer.arena) == FW_OK);
}

// A child attaches itself: what it inherited is closed, and closing that takes nothing from it.
static void a_child_of_a_process_that_shares(void) {
  struct fw_options options;
  struct fw_shm *shm;
  CHECK(fw_options_init(&options, 0) == FW_OK && fw_shm_create(&options, NULL, &shm) == FW_ERR_SETUP);
  CHECK(last_says("at least one page and at most 1 TiB"));
  CHECK(fw_options_init(&options, 8 << 20) == FW_OK && fw_shm_create(&options, NULL, &shm) == FW_OK);
  uint64_t mine = fw_shm_alloc(shm, 3, FW_MOVABLE);
  CHECK(mine != FW_NO_FRAME && fw_shm_adopt(shm, mine, 3) == FW_ERR_REFUSED && last().why == FW_WHY_NOT_OWNER);
  CHECK(last().pfn == mine && last().order == 3 && last().other_owner == fw_shm_number(shm));
  struct fw_cpu *none;
  CHECK(fw_attach((struct fw_arena *)shm, &none) == FW_ERR_HANDLE && fw_detach((struct fw_cpu *)shm) == FW_ERR_HANDLE);
  int fd = dup(fw_shm_fd(shm));
  pid_t child = fork();
  if (child == 0) {
    struct fw_shm *own;
    int right = fw_shm_alloc(shm, 0, FW_MOVABLE) == FW_NO_FRAME && last().status == FW_ERR_HANDLE;
    right &= fw_shm_attach(fd, &own) == FW_OK && fw_shm_close(shm) == FW_ERR_HANDLE;
    uint64_t pfn = fw_shm_alloc(own, 0, FW_MOVABLE);
    right &= pfn != FW_NO_FRAME && fw_shm_free(own, pfn, 0) == FW_OK && fw_shm_close(own) == FW_OK;
    _exit(right ? 0 : 1);
  }
  int status;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(fw_shm_verify(shm, NULL) == FW_OK && fw_shm_close(shm) == FW_OK);
}

static void *background(void *arena) {
  CHECK(fw_run_background(arena, 0) == FW_OK);
  return NULL;
}

static void background_ends(void) {
  struct fw_arena *arena = make(16 << 20, 2, FW_KEEP_MARKS | FW_BACKGROUND);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, background, arena) == 0);
  CHECK(fw_stop_background(arena) == FW_OK && pthread_join(thread, NULL) == 0);
  CHECK(fw_arena_close(arena) == FW_OK);
}

int main(void) {
  CHECK(fw_abi() == FW_ABI && strlen(fw_version()) >= 5);
  CHECK(last().status == FW_OK && fw_last_error(NULL) == FW_ERR_NULL);
  CHECK(!strcmp(fw_status_name(FW_ERR_NO_MEMORY), "FW_ERR_NO_MEMORY") && !strcmp(fw_status_name(5), "?"));
  options_are_checked();
  handles_are_checked();
  blocks();
  callers_memory();
  threads_and_forks();
  balloons();
  background_ends();
  nothing_is_closed_under_a_call();
  a_child_of_an_idle_thread();
  a_child_of_a_process_that_shares();
  puts("the interface is as its header says");
  return 0;
}
