// An object cache in the manner of a kernel's slab: objects of one size are cut out of blocks of an arena; a block whose
// objects are all free goes back. Blocks are aligned to their size, so the block of an object is found by masking its
// address.
//
//   object_cache [ROUNDS]
#include "check.h"

#include <string.h>

enum { SLAB_ORDER = 2, SLAB_BYTES = FW_PAGE_BYTES << SLAB_ORDER };

struct slab {
  struct slab *next, **link; // in the list of slabs that have room
  void *free;                // objects, each holding the next one's address
  unsigned used;
};

struct cache {
  struct fw_cpu *cpu;
  struct slab *partial;
  unsigned size, per_slab, slabs;
};

static void list(struct cache *cache, struct slab *slab) {
  slab->next = cache->partial;
  slab->link = &cache->partial;
  if (slab->next)
    slab->next->link = &slab->next;
  cache->partial = slab;
}

static void unlist(struct slab *slab) {
  *slab->link = slab->next;
  if (slab->next)
    slab->next->link = slab->link;
}

static void *cache_alloc(struct cache *cache) {
  struct slab *slab = cache->partial;
  if (!slab) {
    slab = fw_alloc_pages(cache->cpu, SLAB_ORDER, FW_UNMOVABLE);
    if (!slab)
      return NULL;
    slab->free = NULL;
    slab->used = 0;
    char *object = (char *)slab + SLAB_BYTES - cache->size;
    for (unsigned n = 0; n < cache->per_slab; n++, object -= cache->size) {
      *(void **)object = slab->free;
      slab->free = object;
    }
    list(cache, slab);
    cache->slabs++;
  }
  void *object = slab->free;
  slab->free = *(void **)object;
  if (++slab->used == cache->per_slab)
    unlist(slab);
  return object;
}

static void cache_free(struct cache *cache, void *object) {
  struct slab *slab = (struct slab *)((uintptr_t)object & ~(uintptr_t)(SLAB_BYTES - 1));
  if (slab->used-- == cache->per_slab)
    list(cache, slab);
  *(void **)object = slab->free;
  slab->free = object;
  if (slab->used == 0) {
    unlist(slab);
    cache->slabs--;
    CHECK(fw_free_pages(cache->cpu, slab, SLAB_ORDER) == FW_OK);
  }
}

int main(int argc, char **argv) {
  unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 200000;
  struct fw_options options;
  struct fw_arena *arena;
  struct cache cache = {.size = 192};
  cache.per_slab = (SLAB_BYTES - sizeof(struct slab)) / cache.size;
  CHECK(fw_options_init(&options, 16 << 20) == FW_OK);
  CHECK(fw_arena_new(&options, &arena) == FW_OK);
  CHECK(fw_attach(arena, &cache.cpu) == FW_OK);

  enum { LIVE = 5000 };
  static unsigned char *objects[LIVE];
  unsigned long state = 1, most = 0;
  for (unsigned long n = 0; n < rounds; n++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    unsigned at = (unsigned)(state >> 33) % LIVE;
    if (objects[at]) {
      CHECK(objects[at][0] == (at & 0xff) && objects[at][cache.size - 1] == (at & 0xff));
      cache_free(&cache, objects[at]);
      objects[at] = NULL;
    } else {
      objects[at] = cache_alloc(&cache);
      CHECK(objects[at]);
      memset(objects[at], (int)(at & 0xff), cache.size);
    }
    most = cache.slabs > most ? cache.slabs : most;
  }
  for (int n = 0; n < LIVE; n++)
    if (objects[n])
      cache_free(&cache, objects[n]);
  CHECK(cache.slabs == 0 && !cache.partial);
  CHECK(fw_detach(cache.cpu) == FW_OK);
  struct fw_account account;
  CHECK(fw_verify(arena, &account) == FW_OK && account.allocated == 0 && account.on_lists == 0);
  CHECK(fw_arena_close(arena) == FW_OK);
  printf("%lu rounds, at most %lu slabs of %u objects, and all came back\n", rounds, most, cache.per_slab);
  return 0;
}
