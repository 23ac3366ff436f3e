// conformance          every allocator that must pass, and each broken one, which must fail for its own reason
// conformance NAME     those whose name begins so
#include "conformance.h"

#include <string.h>

static int wanted(const char *name, const char *only) { return !only || !strncmp(name, only, strlen(only)); }

int main(int argc, char **argv) {
  const char *only = argc > 1 ? argv[1] : NULL;
  int wrong = 0, tried = 0;
  const struct allocator *const lists[] = {framewrights, stand_ins};
  for (int list = 0; list < 2; list++)
    for (const struct allocator *one = lists[list]; one->name; one++)
      if (wanted(one->name, only)) {
        wrong += conform(one, stdout) != 0;
        tried++;
      }
  for (int n = 0; broken[n].name; n++)
    if (wanted(broken[n].name, only)) {
      tried++;
      unsigned failed = conform(&broken[n], stdout);
      // It must fail what it breaks; what rests on that may fail, too.
      if ((failed & broken_fails[n]) != broken_fails[n]) {
        printf("WRONG        %s: the suite does not see what is wrong with it\n", broken[n].name);
        wrong++;
      }
    }
  printf("%d wrong of %d\n", wrong, tried);
  return wrong != 0 || tried == 0;
}
