/* The checkpoint reader in C, through pkg-config. */
#include <snug/snug.h>

int main(void) {
  snug_reader* reader = 0;
  const int code = snug_reader_open("no such file", &reader, 0);
  snug_reader_free(reader);
  return code != SNUG_NOT_FOUND;
}
