// A kernel's use of the allocator, as a program without any library: it starts at _start, speaks to Linux by two system
// calls, and has nothing else. Ends with 0 if everything holds, else with the line that did not.
#include "framewright_kernel.h"

static long syscall1(long number, long argument) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(argument) : "rcx", "r11", "memory");
  return result;
}

static _Noreturn void end(int code) {
  for (;;)
    syscall1(60, code);
}

void fwk_relax(void) { __asm__ volatile("pause"); }
uint64_t fwk_now_ns(void) { return 0; }
_Noreturn void fwk_panic(void) { end(255); }

// What a compiler calls behind one's back.
void *memcpy(void *to, const void *from, size_t bytes) {
  for (size_t n = 0; n < bytes; n++)
    ((volatile char *)to)[n] = ((const char *)from)[n];
  return to;
}
void *memset(void *to, int byte, size_t bytes) {
  for (size_t n = 0; n < bytes; n++)
    ((volatile char *)to)[n] = (char)byte;
  return to;
}

void *memmove(void *to, const void *from, size_t bytes) {
  if ((uintptr_t)to <= (uintptr_t)from)
    return memcpy(to, from, bytes);
  while (bytes-- > 0)
    ((volatile char *)to)[bytes] = ((const char *)from)[bytes];
  return to;
}
int memcmp(const void *left, const void *right, size_t bytes) {
  const volatile unsigned char *a = left, *b = right;
  for (; bytes > 0; bytes--, a++, b++)
    if (*a != *b)
      return *a - *b;
  return 0;
}
int bcmp(const void *left, const void *right, size_t bytes) { return memcmp(left, right, bytes); }

#define CHECK(condition)                  \
  do {                                    \
    if (!(condition))                     \
      end(__LINE__ % 250 ? __LINE__ % 250 : 250); \
  } while (0)

static _Alignas(4096) char tables[4 << 20]; // zeroes

__attribute__((force_align_arg_pointer)) void _start(void); // Linux starts it with another stack than a caller
void _start(void) {
  struct fwk_machine machine = {.first = 1024, .frames = 8192, .cpus = 4};
  CHECK(fwk_bytes(&machine) > 0 && fwk_bytes(&machine) <= sizeof tables && fwk_bytes(NULL) == 0);
  CHECK(fwk_init(tables + 8, &machine) == NULL && fwk_init(NULL, &machine) == NULL);
  struct fwk_machine wrong = {.first = 5, .frames = 8192, .cpus = 4};
  CHECK(fwk_bytes(&wrong) == 0);
  struct fwk *fwk = fwk_init(tables, &machine);
  CHECK(fwk != NULL && fwk_free_frames(fwk) == 0);
  // Memory with a hole.
  CHECK(fwk_add(fwk, 1024, 3000) == 0 && fwk_add(fwk, 5120, 4096) == 0 && fwk_add(fwk, 1024, 1) == -1);
  fwk_ready(fwk);
  CHECK(fwk_free_frames(fwk) == 7096);
  static uint64_t frames[7200];
  uint32_t got = 0;
  for (uint64_t frame; (frame = fwk_alloc(fwk, got % 4, 0, FWK_MOVABLE)) != FWK_NO_FRAME; frames[got++] = frame)
    CHECK(frame >= 1024 && frame < 9216 && !(frame >= 4024 && frame < 5120));
  // What other CPUs' lists hold cannot be had by this one: they have to give it back.
  for (uint32_t cpu = 0; cpu < 4; cpu++)
    fwk_drain(fwk, cpu);
  for (uint64_t frame; (frame = fwk_alloc(fwk, 0, 0, FWK_MOVABLE)) != FWK_NO_FRAME;)
    frames[got++] = frame;
  CHECK(got == 7096 && fwk_verify(fwk) == 7096);
  for (uint32_t n = 0; n < got; n++)
    CHECK(fwk_free(fwk, (n + 1) % 4, frames[n], 0) == 0);
  CHECK(fwk_free(fwk, 0, frames[0], 0) == -1 && fwk_free(fwk, 4, frames[0], 0) == -1 && fwk_free(fwk, 0, 1, 0) == -1);
  CHECK(fwk_alloc(fwk, 4, 0, FWK_MOVABLE) == FWK_NO_FRAME && fwk_alloc(fwk, 0, 11, 0) == FWK_NO_FRAME);
  for (uint32_t cpu = 0; cpu < 4; cpu++)
    fwk_drain(fwk, cpu);
  CHECK(fwk_verify(fwk) == 0 && fwk_free_frames(fwk) == 7096);
  uint64_t large = fwk_alloc(fwk, 1, FWK_MAX_ORDER, FWK_UNMOVABLE);
  CHECK(large != FWK_NO_FRAME && large % 1024 == 0 && fwk_free(fwk, 2, large, FWK_MAX_ORDER) == 0);
  end(0);
}
