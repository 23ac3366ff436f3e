#include "conformance.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

const char *const check_names[CHECKS] = {"alignment",  "exclusivity", "exhaustion",
                                         "coalescing", "wrong frees", "concurrency"};

enum { FRAMES = 4096, THREADS = 3 };

struct block {
  uint64_t frame;
  unsigned order;
};

// One run of one check.
struct run {
  const struct allocator *of;
  void *arena, *thread;
  char why[200]; // empty: it passed
};

// Which frames are occupied, by a hash of their number: some allocators have addresses for numbers.
enum { TABLE = 1 << 16 };
struct cell {
  _Atomic uint64_t frame; // + 1
  _Atomic unsigned char used;
};

static void fail(struct run *run, const char *format, ...) {
  if (run->why[0])
    return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(run->why, sizeof run->why, format, arguments);
  va_end(arguments);
}

static struct cell *cell_of(struct cell *table, uint64_t frame) {
  for (uint64_t at = frame * UINT64_C(11400714819323198485) >> 48;; at = (at + 1) % TABLE) {
    uint64_t there = atomic_load(&table[at].frame);
    if (there == 0 && !atomic_compare_exchange_strong(&table[at].frame, &there, frame + 1) && there != frame + 1)
      continue;
    if (there == 0 || there == frame + 1)
      return &table[at];
  }
}

// Marks a block's frames as used or free; whether all of them were the other way.
static int mark(struct cell *table, struct block block, unsigned char used) {
  int all = 1;
  for (uint64_t n = 0; n < UINT64_C(1) << block.order; n++)
    all &= atomic_exchange(&cell_of(table, block.frame + n)->used, used) != used;
  return all;
}

static void alignment(struct run *run) {
  for (int round = 0; round < 3; round++) {
    struct block blocks[64];
    unsigned got = 0;
    for (unsigned order = 0; order <= run->of->max_order && got < 64; order++)
      for (int n = 0; n < 3 && got < 64; n++) {
        struct block block = {run->of->alloc(run->thread, order), order};
        if (block.frame == NO_FRAME)
          continue;
        if (block.frame & ((UINT64_C(1) << order) - 1))
          fail(run, "a block of order %u starts at frame %llu", order, (unsigned long long)block.frame);
        blocks[got++] = block;
      }
    if (got == 0)
      fail(run, "an arena that was just made has no block");
    while (got > 0) {
      struct block block = blocks[--got];
      if (run->of->free(run->thread, block.frame, block.order) != 0)
        fail(run, "a right free of order %u was refused", block.order);
    }
  }
}

static const uint64_t seed = 88172645463325252u;

static unsigned any(uint64_t *state, unsigned below) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return (unsigned)(*state >> 32) % below;
}

// A random history against a table of what is occupied.
static void history(struct run *run, struct cell *table, void *thread, uint64_t state, unsigned steps) {
  enum { MOST = 400 };
  struct block held[MOST];
  unsigned count = 0;
  for (unsigned n = 0; n < steps && !run->why[0]; n++) {
    if (count < MOST && (count == 0 || any(&state, 100) < 52)) {
      unsigned order = any(&state, 3) ? 0 : any(&state, run->of->max_order < 5 ? run->of->max_order + 1 : 5);
      struct block block = {run->of->alloc(thread, order), order};
      if (block.frame == NO_FRAME)
        continue;
      if (!mark(table, block, 1))
        fail(run, "frames of the block of order %u at %llu belong to another block that is allocated", order,
             (unsigned long long)block.frame);
      held[count++] = block;
    } else {
      unsigned at = any(&state, count);
      struct block block = held[at];
      held[at] = held[--count];
      if (!mark(table, block, 0))
        fail(run, "the suite's own table is wrong");
      if (run->of->free(thread, block.frame, block.order) != 0)
        fail(run, "a right free of order %u was refused", block.order);
    }
  }
  while (count > 0) {
    struct block block = held[--count];
    mark(table, block, 0);
    run->of->free(thread, block.frame, block.order);
  }
}

static void exclusivity(struct run *run) {
  struct cell *table = calloc(TABLE, sizeof *table);
  history(run, table, run->thread, seed, 20000);
  free(table);
}

// Everything as single frames; then it is exhausted, says so, and one free makes room for one.
static void exhaustion(struct run *run) {
  static uint64_t frames[2 * FRAMES];
  for (int round = 0; round < 3; round++) {
    unsigned got = 0;
    while (got < 2 * FRAMES && (frames[got] = run->of->alloc(run->thread, 0)) != NO_FRAME)
      got++;
    if (got < FRAMES - FRAMES / 8 || got > FRAMES)
      fail(run, "round %d: %u frames of an arena of %d", round, got, FRAMES);
    if (got > 0) {
      if (run->of->free(run->thread, frames[got / 2], 0) != 0)
        fail(run, "a right free was refused");
      frames[got / 2] = run->of->alloc(run->thread, 0);
      if (frames[got / 2] == NO_FRAME)
        fail(run, "the frame that was freed is not to be had again");
    }
    for (unsigned n = 0; n < got; n++)
      if (frames[n] != NO_FRAME)
        run->of->free(run->thread, frames[n], 0);
  }
}

static unsigned whole(struct run *run) {
  uint64_t blocks[FRAMES];
  unsigned got = 0, order = run->of->max_order;
  while (got < FRAMES && (blocks[got] = run->of->alloc(run->thread, order)) != NO_FRAME)
    got++;
  for (unsigned n = 0; n < got; n++)
    run->of->free(run->thread, blocks[n], order);
  return got;
}

// What was cut up becomes whole: as many largest blocks as before, once everything is free.
static void coalescing(struct run *run) {
  unsigned before = whole(run);
  if (before == 0)
    fail(run, "an arena that was just made has no block of the largest order");
  for (unsigned order = 0; order < run->of->max_order; order++) {
    static uint64_t blocks[FRAMES];
    unsigned got = 0;
    while (got < FRAMES && (blocks[got] = run->of->alloc(run->thread, order)) != NO_FRAME)
      got++;
    // Every second one first, so that no two neighbours come back together.
    for (unsigned odd = 0; odd < 2; odd++)
      for (unsigned n = odd; n < got; n += 2)
        run->of->free(run->thread, blocks[n], order);
    unsigned after = whole(run);
    if (after < before)
      fail(run, "%u largest blocks at first, %u after all had been cut into order %u and freed", before, after, order);
  }
}

static void wrong_frees(struct run *run) {
  const struct allocator *of = run->of;
  if (!(of->promises & REFUSES_WRONG_FREES))
    return;
  uint64_t frame = of->alloc(run->thread, 2);
  if (of->free(run->thread, frame, 1) == 0)
    fail(run, "a free with a smaller order was accepted");
  if (of->free(run->thread, frame, 3) == 0)
    fail(run, "a free with a larger order was accepted");
  if (of->free(run->thread, frame + 1, 0) == 0)
    fail(run, "a free inside a block was accepted");
  if (of->free(run->thread, UINT64_C(1) << 50, 0) == 0)
    fail(run, "a free of a frame without an owner was accepted");
  if (of->free(run->thread, frame, 2) != 0)
    fail(run, "a right free was refused");
  if (of->free(run->thread, frame, 2) == 0)
    fail(run, "a second free was accepted");
  // Nothing of that has changed anything.
  exclusivity(run);
}

struct worker {
  struct run *run;
  struct cell *table;
  uint64_t state;
};

static void *work(void *argument) {
  struct worker *worker = argument;
  void *thread = worker->run->of->attach(worker->run->arena);
  if (!thread)
    fail(worker->run, "a thread cannot attach");
  else {
    history(worker->run, worker->table, thread, worker->state, 10000);
    worker->run->of->detach(thread);
  }
  return NULL;
}

// Random histories on several threads; no frame is ever had twice, and at the end all are there.
static void concurrency(struct run *run) {
  struct cell *table = calloc(TABLE, sizeof *table);
  pthread_t threads[THREADS];
  struct run runs[THREADS];
  struct worker workers[THREADS];
  for (unsigned n = 0; n < THREADS; n++) {
    runs[n] = *run;
    workers[n] = (struct worker){&runs[n], table, seed + 7919 * n};
    pthread_create(&threads[n], NULL, work, &workers[n]);
  }
  for (unsigned n = 0; n < THREADS; n++) {
    pthread_join(threads[n], NULL);
    if (runs[n].why[0])
      fail(run, "%s", runs[n].why);
  }
  free(table);
  if (!run->why[0])
    exhaustion(run);
}

static void (*const checks[CHECKS])(struct run *) = {alignment,  exclusivity, exhaustion,
                                                     coalescing, wrong_frees, concurrency};

unsigned conform(const struct allocator *allocator, FILE *report) {
  unsigned failed = 0;
  for (unsigned check = 0; check < CHECKS; check++) {
    struct run run = {.of = allocator, .arena = allocator->open(FRAMES, THREADS + 1)};
    if (!run.arena) {
      fprintf(report, "skipped  %-28s %s\n", allocator->name, check_names[check]);
      continue;
    }
    run.thread = allocator->attach(run.arena);
    if (run.thread) {
      checks[check](&run);
      allocator->detach(run.thread);
    } else
      fail(&run, "a thread cannot attach");
    allocator->close(run.arena);
    int nothing = check == WRONG_FREES && !(allocator->promises & REFUSES_WRONG_FREES);
    const char *verdict = run.why[0] ? "FAILED" : nothing ? "promised not" : "ok";
    fprintf(report, "%-13s%-28s %-12s %s\n", verdict, allocator->name, check_names[check], run.why);
    failed |= (run.why[0] ? 1u : 0u) << check;
  }
  return failed;
}
