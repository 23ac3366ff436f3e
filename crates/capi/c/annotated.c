// What a memory checker is told: `annotated right` does everything that is right; the others make one mistake each, which memcheck
// and AddressSanitizer must find.
#include "check.h"

#include <pthread.h>
#include <string.h>

static struct fw_arena *arena;

static void use(uint64_t pfn, uint32_t order) {
  unsigned char *block = fw_address(arena, pfn);
  size_t bytes = (size_t)FW_PAGE_BYTES << order;
  block[0]++, block[bytes - 1]++;
  memset(block, 1, bytes);
}

static uint32_t move(void *context, uint64_t from, uint64_t to, uint32_t order) {
  if (order != 0 || *(uint64_t *)context != from)
    return 0;
  memcpy(fw_address(arena, to), fw_address(arena, from), FW_PAGE_BYTES);
  *(uint64_t *)context = to;
  return 1;
}

static void *in_a_thread(void *block) {
  struct fw_cpu *cpu;
  CHECK(fw_attach(arena, &cpu) == FW_OK);
  memset(block, 2, FW_PAGE_BYTES);
  CHECK(fw_free_pages(cpu, block, 0) == FW_OK);
  return NULL;
}

static void right(struct fw_cpu *cpu, uint64_t kept) {
  static uint64_t frames[600], moved;
  for (uint32_t order = 0; order <= FW_MAX_ORDER; order++) {
    uint64_t pfn = fw_alloc(cpu, order, FW_MOVABLE);
    use(pfn, order);
    CHECK(fw_free(cpu, pfn, order) == FW_OK);
    pfn = fw_alloc_zeroed(cpu, order, FW_UNMOVABLE);
    CHECK(*(char *)fw_address(arena, pfn) == 0);
    use(pfn, order);
    CHECK(fw_free(cpu, pfn, order) == FW_OK && fw_free(cpu, pfn, order) != FW_OK);
  }
  CHECK(fw_alloc_bulk(cpu, 0, FW_MOVABLE, frames, 600) == 600);
  for (int n = 0; n < 600; n++)
    use(frames[n], 0);
  CHECK(fw_free_bulk(cpu, 0, frames, 600) == 600);
  // Of a list, those that are refused have told nothing.
  uint64_t mixed[4] = {fw_alloc(cpu, 0, FW_MOVABLE), fw_alloc(cpu, 3, FW_MOVABLE), 0, fw_alloc(cpu, 0, FW_MOVABLE)};
  mixed[2] = mixed[0];
  CHECK(fw_free_bulk(cpu, 0, mixed, 4) == 2);
  use(mixed[1], 3);
  CHECK(fw_free(cpu, mixed[1], 3) == FW_OK);
  CHECK(fw_alloc_at(cpu, 640, 3) == FW_OK);
  use(640, 3);
  CHECK(fw_free(cpu, 640, 2) == FW_ERR_REFUSED && fw_split(cpu, 640, 3, 0) == FW_OK);
  use(641, 0); // a free that was refused has told nothing
  for (uint64_t n = 0; n < 8; n++)
    CHECK(fw_free(cpu, 640 + n, 0) == FW_OK);
  CHECK(fw_set_migrate(arena, move, &moved) == FW_OK);
  // From another pageblock than the one that the caller's page lies in: that stays.
  while ((moved = fw_alloc(cpu, 0, FW_MOVABLE)) / 512 == kept / 512)
    ;
  uint64_t start = moved / 512 * 512;
  use(moved, 0);
  CHECK(fw_alloc_contig(cpu, start, 512) == FW_OK && moved / 512 * 512 != start);
  use(start, 9);
  use(moved, 0);
  CHECK(fw_free(cpu, moved, 0) == FW_OK && fw_free_contig(cpu, start, 512) == FW_OK);
  pthread_t thread;
  void *block = fw_alloc_pages(cpu, 0, FW_MOVABLE);
  CHECK(pthread_create(&thread, NULL, in_a_thread, block) == 0 && pthread_join(thread, NULL) == 0);
}

// Frees 642 to 647, of which 644 is free already: what is before it is freed, and the rest is as it was.
static void refused(struct fw_cpu *cpu) {
  CHECK(fw_alloc_at(cpu, 640, 3) == FW_OK && fw_split(cpu, 640, 3, 0) == FW_OK);
  CHECK(fw_free(cpu, 644, 0) == FW_OK && fw_free(cpu, 646, 0) == FW_OK);
  CHECK(fw_free_range(cpu, 642, 6) == FW_ERR_REFUSED);
  use(645, 0), use(647, 0);
}

int main(int argc, char **argv) {
  struct fw_options options;
  struct fw_cpu *cpu;
  CHECK(argc == 2 && fw_options_init(&options, 16 << 20) == FW_OK);
  CHECK(fw_arena_new(&options, &arena) == FW_OK && fw_attach(arena, &cpu) == FW_OK);
  volatile char *page = fw_alloc_pages(cpu, 0, FW_MOVABLE);
  if (!strcmp(argv[1], "right")) {
    right(cpu, fw_frame_at(arena, (const void *)page));
    CHECK(fw_free_pages(cpu, (void *)page, 0) == FW_OK);
  } else if (!strcmp(argv[1], "freed")) {
    CHECK(fw_free_pages(cpu, (void *)page, 0) == FW_OK);
    page[5] = 1;
  } else if (!strncmp(argv[1], "refused", 7)) {
    // Then uses a frame before the one that is refused, that one, or one after it.
    refused(cpu);
    *(volatile char *)fw_address(arena, 642 + (uint64_t)(argv[1][7] - '0')) = 1;
  } else if (!strcmp(argv[1], "beyond"))
    page[page == (char *)fw_address(arena, 4095) ? -1 : FW_PAGE_BYTES] = 1;
  CHECK(fw_detach(cpu) == FW_OK && fw_arena_close(arena) == FW_OK);
  return 0;
}
