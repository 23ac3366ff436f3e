// A trivial allocator: a byte per frame, first fit, one lock.
#ifndef BITMAP_H
#define BITMAP_H

#include "conformance.h"

void *bitmap_open(uint64_t frames, unsigned threads);
void bitmap_close(void *arena);
void *bitmap_attach(void *arena);
void bitmap_detach(void *thread);
uint64_t bitmap_alloc(void *arena, unsigned order);
int bitmap_free(void *arena, uint64_t frame, unsigned order);
// First fit at multiples of `step` frames.
uint64_t bitmap_alloc_at(void *arena, unsigned order, uint64_t step);

#endif
