// What the header inlines: hits make no call, everything else does and is as right as before. Linked with --wrap, which sends
// each call of the functions below through the counters here.
#include "check.h"

#include <pthread.h>

static unsigned calls;

uint64_t __real_fw_alloc_page(struct fw_cpu *cpu);
fw_status __real_fw_free_page(struct fw_cpu *cpu, uint64_t pfn);
uint64_t __wrap_fw_alloc_page(struct fw_cpu *cpu);
fw_status __wrap_fw_free_page(struct fw_cpu *cpu, uint64_t pfn);

uint64_t __wrap_fw_alloc_page(struct fw_cpu *cpu) {
  calls++;
  return __real_fw_alloc_page(cpu);
}

fw_status __wrap_fw_free_page(struct fw_cpu *cpu, uint64_t pfn) {
  calls++;
  return __real_fw_free_page(cpu, pfn);
}

static struct fw_arena *make(uint32_t preset, uint32_t flags) {
  struct fw_options options;
  struct fw_arena *arena;
  CHECK(fw_options_init(&options, 16 << 20) == FW_OK);
  options.preset = preset;
  options.flags = flags;
  options.base = 1 << 20;
  CHECK(fw_arena_new(&options, &arena) == FW_OK);
  return arena;
}

// Calls that 1,000 pairs make, and that as many allocations followed by as many frees do.
static void count(uint32_t preset, uint32_t flags, unsigned *pairs, unsigned *runs) {
  static uint64_t frames[1000];
  struct fw_arena *arena = make(preset, flags);
  struct fw_cpu *cpu;
  struct fw_account account;
  CHECK(fw_attach(arena, &cpu) == FW_OK);
  calls = 0;
  for (int n = 0; n < 1000; n++) {
    uint64_t pfn = fw_alloc(cpu, 0, FW_MOVABLE);
    CHECK(pfn >= 1 << 20 && pfn < (1 << 20) + 4096);
    CHECK(fw_free(cpu, pfn, 0) == FW_OK);
  }
  *pairs = calls;
  calls = 0;
  for (int n = 0; n < 1000; n++)
    CHECK((frames[n] = fw_alloc_page(cpu)) != FW_NO_FRAME);
  for (int n = 1000; n-- > 0;)
    CHECK(fw_free_page(cpu, frames[n]) == FW_OK);
  *runs = calls;
  CHECK(fw_free_page(cpu, frames[7]) == FW_ERR_REFUSED && fw_free_page(cpu, 5) == FW_ERR_REFUSED);
  CHECK(fw_drain(cpu) == FW_OK && fw_verify(arena, &account) == FW_OK && account.free == 4096);
  CHECK(fw_detach(cpu) == FW_OK && fw_arena_close(arena) == FW_OK);
}

static struct fw_cpu *of_main;

static void *drains(void *arena) {
  CHECK(fw_alloc_page(of_main) == FW_NO_FRAME);
  struct fw_error error;
  CHECK(fw_last_error(&error) == FW_OK && error.status == FW_ERR_THREAD);
  CHECK(fw_free_page(of_main, 1 << 20) == FW_ERR_THREAD);
  fw_drain_all(arena);
  return NULL;
}

int main(void) {
  unsigned pairs, runs;
  count(FW_PRESET_DEFAULT, 0, &pairs, &runs);
  printf("1,000 pairs: %u calls; 1,000 and 1,000 in a row: %u\n", pairs, runs);
#ifdef FW_NO_INLINE
  CHECK(pairs == 0 && runs == 2000); // fw_alloc and fw_free are not counted
#elif defined(__x86_64__)
  CHECK(pairs > 0 && pairs < 20 && runs < 1500);
  // Nothing is missed where nothing hits: hits that count, that fail on purpose, memory that is filled.
  count(FW_PRESET_LINUX_6_1, 0, &pairs, &runs);
  CHECK(pairs == 2000 && runs == 2000);
  count(FW_PRESET_DEFAULT, FW_POISON, &pairs, &runs);
  CHECK(pairs == 2000 && runs == 2000);
  count(FW_PRESET_DEFAULT, FW_FAULT_INJECTION, &pairs, &runs);
  CHECK(pairs >= 1000);
#endif
  // A drain that another thread asks for is seen by the next free.
  struct fw_arena *arena = make(FW_PRESET_DEFAULT, 0);
  CHECK(fw_attach(arena, &of_main) == FW_OK);
  uint64_t pfn = fw_alloc_page(of_main);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, drains, arena) == 0 && pthread_join(thread, NULL) == 0);
  calls = 0;
  CHECK(fw_free_page(of_main, pfn) == FW_OK && calls == 1);
  CHECK(fw_answer(of_main) == FW_OK && fw_drain_all(arena) == 0);
  struct fw_cpu *closed = of_main;
  CHECK(fw_detach(of_main) == FW_OK);
  CHECK(fw_alloc_page(closed) == FW_NO_FRAME && fw_free_page(closed, pfn) == FW_ERR_HANDLE);
  CHECK(fw_alloc_page(NULL) == FW_NO_FRAME && fw_free_page(NULL, pfn) == FW_ERR_NULL);
  CHECK(fw_arena_close(arena) == FW_OK);
  return 0;
}
