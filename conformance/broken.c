// Four allocators that are each wrong in one way: what shows that the suite can fail, and for the right reason.
#include "bitmap.h"

#include <stdatomic.h>

// Its blocks do not begin at a multiple of their size.
static uint64_t alloc_misaligned(void *arena, unsigned order) { return bitmap_alloc_at(arena, order, 1); }

// Now and then hands out a frame that is in use: the one before the frame it has found.
static uint64_t alloc_twice(void *arena, unsigned order) {
  static _Atomic unsigned calls;
  uint64_t frame = bitmap_alloc(arena, order);
  if (atomic_fetch_add(&calls, 1) % 97 == 96 && order == 0 && frame != NO_FRAME && frame > 0)
    return frame - 1;
  return frame;
}

static int free_anything(void *arena, uint64_t frame, unsigned order) {
  (void)bitmap_free(arena, frame, order);
  return 0;
}

// Forgets one frame in 64 when it is freed.
static int free_and_lose(void *arena, uint64_t frame, unsigned order) {
  if (order == 0 && frame % 64 == 0)
    return 0;
  return bitmap_free(arena, frame, order);
}

#define BROKEN(name, promises, alloc, free) {name, 10, promises, bitmap_open, bitmap_close, bitmap_attach, bitmap_detach, alloc, free}

const struct allocator broken[] = {
    BROKEN("broken: misaligned", 0, alloc_misaligned, bitmap_free),
    BROKEN("broken: hands out twice", 0, alloc_twice, free_anything),
    BROKEN("broken: loses frames", 0, bitmap_alloc, free_and_lose),
    BROKEN("broken: takes any free", REFUSES_WRONG_FREES, bitmap_alloc, free_anything),
    {0},
};

const unsigned broken_fails[] = {
    1u << ALIGNMENT,
    1u << EXCLUSIVITY,
    1u << EXHAUSTION | 1u << COALESCING,
    1u << WRONG_FREES,
};
