/* A connection in C, through pkg-config. */
#include <snug/snug.h>

int main(void) {
  snug_wire_connection* connection = 0;
  const int code = snug_wire_connect("no address", 0, 0, &connection, 0);
  snug_wire_connection_free(connection);
  return code != SNUG_USAGE;
}
