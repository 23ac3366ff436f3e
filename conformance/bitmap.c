#include "bitmap.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct bitmap {
  pthread_mutex_t lock;
  uint64_t frames;
  // 0: free; 255: inside a block; else the order of the block that starts here, plus 1.
  unsigned char state[];
};

void *bitmap_open(uint64_t frames, unsigned threads) {
  (void)threads;
  struct bitmap *map = calloc(1, sizeof *map + frames);
  pthread_mutex_init(&map->lock, NULL);
  map->frames = frames;
  return map;
}

void bitmap_close(void *arena) { free(arena); }
void *bitmap_attach(void *arena) { return arena; }
void bitmap_detach(void *thread) { (void)thread; }

uint64_t bitmap_alloc_at(void *arena, unsigned order, uint64_t step) {
  struct bitmap *map = arena;
  uint64_t pages = UINT64_C(1) << order, found = NO_FRAME;
  pthread_mutex_lock(&map->lock);
  for (uint64_t at = 0; at + pages <= map->frames && found == NO_FRAME; at += step) {
    uint64_t n = 0;
    while (n < pages && map->state[at + n] == 0)
      n++;
    if (n == pages)
      found = at;
  }
  if (found != NO_FRAME) {
    memset(map->state + found, 255, pages);
    map->state[found] = (unsigned char)(order + 1);
  }
  pthread_mutex_unlock(&map->lock);
  return found;
}

uint64_t bitmap_alloc(void *arena, unsigned order) { return bitmap_alloc_at(arena, order, UINT64_C(1) << order); }

int bitmap_free(void *arena, uint64_t frame, unsigned order) {
  struct bitmap *map = arena;
  pthread_mutex_lock(&map->lock);
  int wrong = frame >= map->frames || map->state[frame] != order + 1;
  if (!wrong)
    memset(map->state + frame, 0, (size_t)1 << order);
  pthread_mutex_unlock(&map->lock);
  return wrong;
}
