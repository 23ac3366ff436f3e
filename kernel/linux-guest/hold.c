// Load of a snapshot's machine: takes memory in a way that leaves a mark in /proc, prints a line, and keeps it until
// it is killed.
//
//   hold touch MIB [STEP]    touches one byte in every STEP bytes (4096) of MIB mebibytes
//   hold scatter MIB         fills MIB mebibytes with pages of two pipes in turns and empties one of the two, so that every
//                            other page is free and none between them can be moved; then asks for huge pages
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PAGE = 4096, PIPE = 1 << 20, HUGE = 2 << 20 };

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void touch(size_t bytes, size_t step) {
  char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    die("mmap");
  for (size_t at = 0; at < bytes; at += step)
    memory[at] = 1;
}

static void scatter(size_t bytes) {
  static char page[PAGE];
  struct rlimit files = {1 << 16, 1 << 16};
  if (setrlimit(RLIMIT_NOFILE, &files))
    die("setrlimit");
  size_t pipes = bytes / PIPE / 2 * 2;
  int(*ends)[2] = calloc(pipes, sizeof *ends);
  for (size_t n = 0; n < pipes; n++)
    if (pipe(ends[n]) || fcntl(ends[n][1], F_SETPIPE_SZ, PIPE) < 0)
      die("pipe");
  for (size_t n = 0; n < pipes; n += 2)
    for (int at = 0; at < PIPE / PAGE; at++)
      if (write(ends[n][1], page, PAGE) != PAGE || write(ends[n + 1][1], page, PAGE) != PAGE)
        die("write");
  for (size_t n = 1; n < pipes; n += 2) {
    close(ends[n][0]);
    close(ends[n][1]);
  }
  // Attempts that fail are put off, so that few of these compact memory themselves.
  for (int round = 0; round < 60; round++) {
    size_t all = 200 * (size_t)HUGE;
    char *memory = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || madvise(memory, all, MADV_HUGEPAGE))
      die("mmap");
    for (size_t at = HUGE; at < all; at += HUGE)
      memory[at] = 1;
    munmap(memory, all);
  }
}

int main(int count, char **words) {
  if (count < 3)
    return 2;
  size_t bytes = strtoul(words[2], NULL, 10) << 20;
  if (!strcmp(words[1], "scatter"))
    scatter(bytes);
  else
    touch(bytes, count > 3 ? strtoul(words[3], NULL, 10) : PAGE);
  puts("holding");
  fflush(stdout);
  for (;;)
    pause();
}
