// Framewright, in each of its presets, and an arena that processes share.
#include "conformance.h"

#include <framewright.h>

static void *open_with(uint64_t frames, unsigned threads, uint32_t preset, uint32_t flags, uint32_t backing) {
  struct fw_options options;
  struct fw_arena *arena = NULL;
  fw_options_init(&options, frames * FW_PAGE_BYTES);
  options.cpus = threads;
  options.preset = preset;
  options.flags = flags;
  options.backing = backing;
  return fw_arena_new(&options, &arena) == FW_OK ? arena : NULL;
}

#define OPEN(name, preset, flags, backing) \
  static void *name(uint64_t frames, unsigned threads) { return open_with(frames, threads, preset, flags, backing); }
OPEN(open_default, FW_PRESET_DEFAULT, 0, FW_BACKING_BASE)
OPEN(open_described, FW_PRESET_DEFAULT, 0, FW_BACKING_DESCRIBED)
OPEN(open_poisoned, FW_PRESET_DEFAULT, FW_POISON, FW_BACKING_BASE)
OPEN(open_marks, FW_PRESET_DEFAULT, FW_KEEP_MARKS, FW_BACKING_BASE)
OPEN(open_lists, FW_PRESET_DEFAULT, FW_FREE_LISTS, FW_BACKING_BASE)
OPEN(open_lists_poisoned, FW_PRESET_DEFAULT, FW_FREE_LISTS | FW_POISON, FW_BACKING_BASE)
OPEN(open_zeroed, FW_PRESET_DEFAULT, FW_INIT_ON_FREE, FW_BACKING_BASE)
OPEN(open_compact, FW_PRESET_DEFAULT, FW_COMPACT, FW_BACKING_BASE)
OPEN(open_3_0, FW_PRESET_LINUX_3_0, 0, FW_BACKING_BASE)
OPEN(open_5_4, FW_PRESET_LINUX_5_4, 0, FW_BACKING_BASE)
OPEN(open_6_1, FW_PRESET_LINUX_6_1, 0, FW_BACKING_BASE)
OPEN(open_6_7, FW_PRESET_LINUX_6_7, 0, FW_BACKING_BASE)
OPEN(open_6_16, FW_PRESET_LINUX_6_16, 0, FW_BACKING_BASE)

static void *open_64k(uint64_t frames, unsigned threads) {
  struct fw_options options;
  struct fw_arena *arena = NULL;
  fw_options_init(&options, frames * 65536);
  options.cpus = threads;
  options.page_bytes = 65536;
  return fw_arena_new(&options, &arena) == FW_OK ? arena : NULL;
}

static void end(void *arena) { fw_arena_close(arena); }

static void *attach(void *arena) {
  struct fw_cpu *cpu;
  return fw_attach(arena, &cpu) == FW_OK ? cpu : NULL;
}

static void detach(void *cpu) { fw_detach(cpu); }

static uint64_t alloc(void *cpu, unsigned order) { return fw_alloc(cpu, order, FW_MOVABLE); }

static int give(void *cpu, uint64_t frame, unsigned order) { return fw_free(cpu, frame, order) != FW_OK; }

static void *open_shm(uint64_t frames, unsigned threads) {
  (void)threads;
  struct fw_options options;
  struct fw_shm *shm = NULL;
  fw_options_init(&options, frames * FW_PAGE_BYTES);
  return fw_shm_create(&options, "conformance", &shm) == FW_OK ? shm : NULL;
}

static void end_shm(void *shm) { fw_shm_close(shm); }
static void *same(void *shm) { return shm; }
static void nothing(void *shm) { (void)shm; }
static uint64_t alloc_shm(void *shm, unsigned order) { return fw_shm_alloc(shm, order, FW_MOVABLE); }
static int give_shm(void *shm, uint64_t frame, unsigned order) { return fw_shm_free(shm, frame, order) != FW_OK; }

// The same through calls alone: what the header inlines is the library's own then.
static uint64_t alloc_call(void *cpu, unsigned order) { return (fw_alloc)(cpu, order, FW_MOVABLE); }
static int give_call(void *cpu, uint64_t frame, unsigned order) { return (fw_free)(cpu, frame, order) != FW_OK; }

#define OURS(name, open) {name, FW_MAX_ORDER, REFUSES_WRONG_FREES, open, end, attach, detach, alloc, give}
#define CALLS(name, open) {name, FW_MAX_ORDER, REFUSES_WRONG_FREES, open, end, attach, detach, alloc_call, give_call}

const struct allocator framewrights[] = {
    OURS("framewright", open_default),
    OURS("framewright, described", open_described),
    OURS("framewright, poisoned", open_poisoned),
    OURS("framewright, watermarks", open_marks),
    OURS("framewright, lists", open_lists),
    OURS("framewright, lists, poisoned", open_lists_poisoned),
    OURS("framewright, zeroed", open_zeroed),
    OURS("framewright, compact", open_compact),
    CALLS("framewright, compact, by calls", open_compact),
    OURS("framewright, pages of 64 KiB", open_64k),
    CALLS("framewright, by calls", open_default),
    OURS("framewright as Linux 3.0", open_3_0),
    OURS("framewright as Linux 5.4", open_5_4),
    OURS("framewright as Linux 6.1", open_6_1),
    OURS("framewright as Linux 6.7", open_6_7),
    OURS("framewright as Linux 6.16", open_6_16),
    {"framewright in a memfd", FW_MAX_ORDER, REFUSES_WRONG_FREES, open_shm, end_shm, same, nothing, alloc_shm, give_shm},
    {0},
};
