/* The same in C, through pkg-config. */
#include <snug/snug.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  printf("snug %s (%s)\n", snug_version(), snug_simd_target());
  return strcmp(snug_version(), SNUG_VERSION_STRING) != 0;
}
