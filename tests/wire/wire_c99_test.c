/* The wire's header is plain C99, and a message crosses through it. */
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "snug/snug.h"

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      return 1;                                               \
    }                                                         \
  } while (0)

enum { kBytes = 300000, kHalf = 100001 };

/* Somebody who accepts a connection and says nothing: connecting would wait for the timeout. */
static int check_stop(void) {
  const int stop = 1, silent = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address;
  socklen_t length = sizeof address;
  snug_wire_connection* none = NULL;
  snug_wire_options options = SNUG_WIRE_OPTIONS_INIT;
  char text[32];
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  options.timeout_ms = 600000;
  CHECK(bind(silent, (struct sockaddr*)&address, length) == 0 && listen(silent, 1) == 0);
  CHECK(getsockname(silent, (struct sockaddr*)&address, &length) == 0);
  snprintf(text, sizeof text, "127.0.0.1:%d", ntohs(address.sin_port));
  CHECK(snug_wire_connect(text, &options, &stop, &none, NULL) == SNUG_IO && none == NULL);
  close(silent);
  return 0;
}

int main(void) {
  snug_wire_options options = SNUG_WIRE_OPTIONS_INIT;
  snug_status status;
  snug_wire_listener* listener = NULL;
  snug_wire_connection *a = NULL, *b = NULL;
  snug_wire_transfer *sent = NULL, *received = NULL;
  snug_wire_stats stats;
  char address[64], note[4];
  size_t num_bytes = 0;
  unsigned char *data = malloc(kBytes), *got = calloc(kBytes, 1);
  snug_segment from, to[2];
  for (int i = 0; i < kBytes; ++i) data[i] = (unsigned char)(i % 2 ? 60 + i % 3 : i * 37);
  options.token = "a shared secret of both";
  options.mode = SNUG_WIRE_ENTROPY;

  CHECK(snug_wire_listen("127.0.0.1:0", &options, &listener, &status) == SNUG_OK);
  CHECK(snug_wire_listener_address(listener, address, sizeof address) < sizeof address);
  CHECK(snug_wire_accept(listener, 0, &b, &status) == SNUG_TIMEOUT);
  CHECK(snug_wire_connect(address, &options, NULL, &a, &status) == SNUG_OK);
  CHECK(snug_wire_accept(listener, 10000, &b, &status) == SNUG_OK);

  from.data = data, from.num_bytes = kBytes;
  to[0].data = got, to[0].num_bytes = kHalf;
  to[1].data = got + kHalf, to[1].num_bytes = kBytes - kHalf;
  CHECK(snug_wire_send(a, 5, SNUG_BF16, &from, 1, &sent, &status) == SNUG_OK);
  CHECK(snug_wire_recv(b, 5, to, 2, &received, &status) == SNUG_OK);
  CHECK(snug_wire_wait(received, 30000, &status) == SNUG_OK);
  CHECK(snug_wire_wait(sent, -1, &status) == SNUG_OK);
  CHECK(memcmp(data, got, kBytes) == 0);
  CHECK(snug_wire_is_done(sent) && snug_wire_done_bytes(received) == kBytes);
  CHECK(snug_wire_stats_of(a, &stats, &status) == SNUG_OK);
  CHECK(stats.raw_bytes == kBytes && stats.wire_bytes < kBytes);

  CHECK(snug_wire_send_note(b, "hello", 5, &status) == SNUG_OK);
  CHECK(snug_wire_recv_note(a, 10000, note, sizeof note, &num_bytes, &status) ==
        SNUG_DST_TOO_SMALL);
  CHECK(num_bytes == 5);
  CHECK(snug_wire_recv_note(a, 10000, address, sizeof address, &num_bytes, &status) == SNUG_OK);
  CHECK(num_bytes == 5 && memcmp(address, "hello", 5) == 0);

  CHECK(snug_wire_send(a, 5, 99, &from, 1, &sent, &status) == SNUG_USAGE);
  to[0].num_bytes = SIZE_MAX, to[1].num_bytes = 5; /* 4 bytes, if the sum wraps */
  CHECK(snug_wire_send(a, 5, SNUG_BF16, to, 2, &sent, &status) == SNUG_USAGE);
  CHECK(snug_wire_recv(b, 5, to, 2, &received, &status) == SNUG_USAGE);
  to[0].num_bytes = ((size_t)1 << 43) + 1;
  CHECK(snug_wire_send(a, 5, SNUG_BF16, to, 1, &sent, &status) == SNUG_USAGE);
  options.token = "only 15 bytes..";
  CHECK(snug_wire_connect("127.0.0.1:1", &options, NULL, &a, &status) == SNUG_USAGE);
  CHECK(snug_wire_connect("nonsense", NULL, NULL, &a, &status) == SNUG_USAGE);
  CHECK(snug_wire_wait(NULL, 0, NULL) == SNUG_USAGE);
  CHECK(check_stop() == 0);
  snug_wire_connection_close(a);
  snug_wire_connection_close(a);
  snug_wire_connection_close(NULL);
  CHECK(snug_wire_recv_note(a, 60000, note, sizeof note, &num_bytes, &status) == SNUG_PEER);
  CHECK(snug_wire_recv_note(b, 60000, note, sizeof note, &num_bytes, &status) == SNUG_PEER);
  snug_wire_transfer_free(sent);
  snug_wire_transfer_free(received);
  snug_wire_connection_free(a);
  snug_wire_connection_free(b);
  snug_wire_listener_free(listener);
  snug_wire_connection_free(NULL);
  free(data);
  free(got);
  puts("passed");
  return 0;
}
