// Checks that stay on in every build, and say where they failed and what the library said last.
#ifndef CHECK_H
#define CHECK_H

#include <framewright.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                      \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      char text[512];                                                                         \
      fw_last_error_text(text, sizeof text);                                                  \
      fprintf(stderr, "%s:%d: not so: %s\n  last error: %s\n", __FILE__, __LINE__, #condition, text); \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)

#endif
