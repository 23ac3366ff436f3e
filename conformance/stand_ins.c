// Two allocators that have nothing in common with Framewright: a bitmap, first fit; and pages of the C library, counted so
// that they run out.
#include "bitmap.h"

#include <stdatomic.h>
#include <stdlib.h>

struct counted {
  _Atomic int64_t left;
};

static void *open_counted(uint64_t frames, unsigned threads) {
  (void)threads;
  struct counted *counted = malloc(sizeof *counted);
  atomic_init(&counted->left, (int64_t)frames);
  return counted;
}

static uint64_t alloc_counted(void *arena, unsigned order) {
  struct counted *counted = arena;
  int64_t pages = INT64_C(1) << order;
  void *block;
  if (atomic_fetch_sub(&counted->left, pages) < pages || posix_memalign(&block, (size_t)4096 << order, (size_t)4096 << order)) {
    atomic_fetch_add(&counted->left, pages);
    return NO_FRAME;
  }
  return (uint64_t)(uintptr_t)block / 4096;
}

static int free_counted(void *arena, uint64_t frame, unsigned order) {
  struct counted *counted = arena;
  free((void *)(uintptr_t)(frame * 4096));
  atomic_fetch_add(&counted->left, INT64_C(1) << order);
  return 0;
}

const struct allocator stand_ins[] = {
    {"bitmap", 10, REFUSES_WRONG_FREES, bitmap_open, bitmap_close, bitmap_attach, bitmap_detach, bitmap_alloc, bitmap_free},
    {"the C library's pages", 6, 0, open_counted, free, bitmap_attach, bitmap_detach, alloc_counted, free_counted},
    {0},
};
