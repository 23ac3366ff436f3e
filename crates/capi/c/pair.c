// How much dearer the hot pair is in C than in Rust: the two interleaved, the best of many rounds of each. Prints
// nanoseconds a pair in C, in Rust, and the ratio. Needs a library with the feature `twin`. With FW_NO_INLINE, C calls the
// library each time; with GENERAL, order and type are arguments.
#define _POSIX_C_SOURCE 199309L
#include "check.h"

#include <time.h>

uint64_t fw_twin_pairs(struct fw_cpu *cpu, uint64_t pairs);

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static uint64_t in_c(struct fw_cpu *cpu, uint64_t pairs) {
  uint64_t done = 0;
  for (uint64_t n = 0; n < pairs; n++) {
#ifdef GENERAL
    uint64_t pfn = fw_alloc(cpu, 0, FW_MOVABLE);
    done += fw_free(cpu, pfn, 0) == FW_OK;
#else
    uint64_t pfn = fw_alloc_page(cpu);
    done += fw_free_page(cpu, pfn) == FW_OK;
#endif
  }
  return done;
}

int main(int argc, char **argv) {
  uint64_t pairs = 20000;
  int rounds = argc > 1 ? atoi(argv[1]) : 500;
  struct fw_options options;
  struct fw_arena *arena;
  struct fw_cpu *cpu;
  CHECK(fw_options_init(&options, 64 << 20) == FW_OK);
  CHECK(fw_arena_new(&options, &arena) == FW_OK && fw_attach(arena, &cpu) == FW_OK);
  double best_c = 1e18, best_rust = 1e18;
  for (int n = 0; n < rounds; n++) {
    double begin = now();
    CHECK(in_c(cpu, pairs) == pairs);
    double middle = now();
    CHECK(fw_twin_pairs(cpu, pairs) == pairs);
    double end = now();
    best_c = middle - begin < best_c ? middle - begin : best_c;
    best_rust = end - middle < best_rust ? end - middle : best_rust;
  }
  printf("%.2f %.2f %.3f\n", best_c / (double)pairs, best_rust / (double)pairs, best_c / best_rust);
  return 0;
}
