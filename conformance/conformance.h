// A conformance suite for page-frame allocators. It drives any of them through one small table of functions, and says
// which of the things that every caller relies on hold.
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define NO_FRAME UINT64_MAX

// What an allocator promises beyond handing out memory that no other owner has.
enum {
  REFUSES_WRONG_FREES = 1, // a free of what is not allocated, or with another order, is refused and changes nothing
};

// An allocator of blocks of 2^order frames. All frames of an arena lie in [first, first + span) for some first.
struct allocator {
  const char *name;
  unsigned max_order;
  unsigned promises;
  // An arena of `frames` frames for `threads` threads at once; NULL: this system lacks something.
  void *(*open)(uint64_t frames, unsigned threads);
  void (*close)(void *arena);
  // What a thread calls with; ended by the same thread.
  void *(*attach)(void *arena);
  void (*detach)(void *thread);
  // A block's first frame, or NO_FRAME.
  uint64_t (*alloc)(void *thread, unsigned order);
  // 0, or anything else if the free was refused.
  int (*free)(void *thread, uint64_t frame, unsigned order);
};

// The checks, in this order.
enum check { ALIGNMENT, EXCLUSIVITY, EXHAUSTION, COALESCING, WRONG_FREES, CONCURRENCY, CHECKS };
extern const char *const check_names[CHECKS];

// Runs all checks, writes a line for each to `report`, and returns the set of those that failed, as bits.
unsigned conform(const struct allocator *allocator, FILE *report);

// The allocators here. Each list ends with a name that is NULL.
extern const struct allocator framewrights[], stand_ins[], broken[];
// For each broken one, the checks that must fail.
extern const unsigned broken_fails[];

#endif
