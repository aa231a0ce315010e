/* Checkpoints in plain C99: compressing, whole tensors, rows, bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snug/snug.h"

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      fprintf(stderr, "line %d: %s is not so\n", __LINE__, #condition); \
      exit(1);                                                          \
    }                                                                   \
  } while (0)

static snug_reader* open_data(const char* name) {
  char path[4096];
  snug_reader* reader = NULL;
  snug_status status;
  const char* folder = getenv("SNUG_TEST_DATA");
  CHECK(folder != NULL);
  snprintf(path, sizeof path, "%s/%s", folder, name);
  CHECK(snug_reader_open(path, &reader, &status) == SNUG_OK && reader != NULL);
  CHECK(status.code == SNUG_OK && status.line[0] == '\0');
  return reader;
}

/* Every tensor is read whole, and again in two parts of its rows. */
static void read_all(const snug_reader* reader) {
  snug_reader_info info;
  size_t i, idx, written;
  CHECK(snug_reader_inspect(reader, &info, NULL) == SNUG_OK && info.num_tensors > 0);
  for (i = 0; i < info.num_tensors; ++i) {
    snug_tensor_info tensor;
    unsigned char *whole, *parts;
    uint64_t rows;
    CHECK(snug_reader_tensor(reader, i, &tensor, NULL) == SNUG_OK);
    CHECK(strlen(tensor.name) == tensor.name_bytes && strlen(tensor.dtype_name) > 0);
    CHECK(snug_reader_find(reader, tensor.name, &idx, NULL) == SNUG_OK && idx == i);
    CHECK(info.compressed || tensor.stored_bytes == tensor.raw_bytes);
    whole = malloc((size_t)tensor.raw_bytes + 1);
    parts = malloc((size_t)tensor.raw_bytes + 1);
    CHECK(snug_reader_read(reader, i, whole, (size_t)tensor.raw_bytes, 0, &written, NULL) ==
          SNUG_OK);
    CHECK(written == tensor.raw_bytes);
    rows = tensor.num_dims > 0 ? tensor.shape[0] : 1;
    if (rows != 0 && tensor.raw_bytes % rows != 0) { /* rows that are not whole bytes */
      CHECK(snug_reader_read_rows(reader, i, 0, 1, parts, 1, 1, NULL, NULL) == SNUG_USAGE);
    } else {
      CHECK(snug_reader_read_rows(reader, i, 0, rows / 2, parts, (size_t)tensor.raw_bytes, 1,
                                  &written, NULL) == SNUG_OK);
      CHECK(snug_reader_read_rows(reader, i, rows / 2, rows, parts + written,
                                  (size_t)tensor.raw_bytes - written, 1, NULL, NULL) == SNUG_OK);
      CHECK(memcmp(whole, parts, (size_t)tensor.raw_bytes) == 0);
    }
    if (tensor.raw_bytes >= 4) { /* from anywhere to anywhere */
      const size_t count = (size_t)tensor.raw_bytes - 3;
      CHECK(snug_reader_read_bytes(reader, i, 1, parts, count, 1, NULL) == SNUG_OK);
      CHECK(memcmp(whole + 1, parts, count) == 0);
      CHECK(snug_reader_read_bytes(reader, i, 4, parts, count, 1, NULL) == SNUG_USAGE);
    }
    free(whole);
    free(parts);
  }
}

static void check_sample(const snug_reader* reader) {
  snug_reader_info info;
  snug_tensor_info tensor;
  snug_metadata_info entry;
  size_t idx;
  CHECK(snug_reader_inspect(reader, &info, NULL) == SNUG_OK);
  CHECK(info.compressed == 0 && info.num_tensors == 7 && info.num_metadata == 1);
  CHECK(info.raw_bytes == info.stored_bytes);
  CHECK(snug_reader_metadata(reader, 0, &entry, NULL) == SNUG_OK);
  CHECK(strcmp(entry.key, "format") == 0 && entry.key_bytes == 6);
  CHECK(strcmp(entry.value, "pt") == 0 && entry.value_bytes == 2);
  CHECK(snug_reader_find(reader, "model.layers.0.mlp.down_proj.weight", &idx, NULL) == SNUG_OK);
  CHECK(snug_reader_tensor(reader, idx, &tensor, NULL) == SNUG_OK);
  CHECK(tensor.dtype == SNUG_BF16 && strcmp(tensor.dtype_name, "BF16") == 0);
  CHECK(tensor.num_dims == 2 && tensor.shape[0] == 192 && tensor.shape[1] == 1024);
  CHECK(tensor.raw_bytes == 192 * 1024 * 2);
}

static void check_errors(const snug_reader* reader) {
  snug_reader* none = NULL;
  snug_tensor_info tensor;
  snug_status status;
  char text[512], byte;
  size_t idx = 4711;
  snug_metadata_info entry;
  CHECK(snug_reader_open("no/such.safetensors", &none, &status) == SNUG_NOT_FOUND);
  CHECK(none == NULL && status.code == SNUG_NOT_FOUND);
  CHECK(snug_status_text(&status, text, sizeof text) < sizeof text);
  CHECK(strstr(text, "no/such.safetensors") != NULL);
  CHECK(snug_reader_find(reader, "nobody", &idx, &status) == SNUG_NOT_FOUND && idx == 4711);
  CHECK(strstr(status.line, "\"nobody\"") != NULL);
  CHECK(snug_reader_tensor(reader, 7, &tensor, &status) == SNUG_NOT_FOUND);
  CHECK(snug_reader_metadata(reader, 1, &entry, NULL) == SNUG_NOT_FOUND);
  CHECK(snug_reader_metadata(reader, 0, NULL, NULL) == SNUG_USAGE);
  CHECK(snug_reader_read(reader, 0, &byte, 1, 1, NULL, &status) == SNUG_DST_TOO_SMALL);
  CHECK(status.found == 1 && status.expected == 256 * 384 * 2);
  CHECK(snug_reader_read_rows(reader, 0, 0, 1000, &byte, 1, 1, NULL, NULL) == SNUG_USAGE);
  CHECK(snug_reader_read_rows(reader, 0, 2, 1, &byte, 1, 1, NULL, NULL) == SNUG_USAGE);
  CHECK(snug_reader_read_rows(reader, 0, 5, 5, NULL, 0, 1, &idx, NULL) == SNUG_OK && idx == 0);
  CHECK(snug_reader_open(NULL, &none, NULL) == SNUG_USAGE);
  CHECK(snug_reader_open("x", NULL, NULL) == SNUG_USAGE);
  CHECK(snug_reader_read(NULL, 0, &byte, 1, 1, NULL, NULL) == SNUG_USAGE);
  CHECK(snug_reader_read(reader, 0, NULL, 1, 1, NULL, NULL) == SNUG_USAGE);
  CHECK(snug_reader_inspect(reader, NULL, NULL) == SNUG_USAGE);
}

static void check_compress(void) {
  char in[4096], out[64];
  snug_reader* reader = NULL;
  snug_reader_info info;
  snug_status status;
  int stop = 1;
  snprintf(in, sizeof in, "%s/sample.safetensors", getenv("SNUG_TEST_DATA"));
  snprintf(out, sizeof out, "c99.%p.safetensors", (void*)&status); /* in the build folder */
  remove(out);
  CHECK(snug_compress_file(in, out, SNUG_ENTROPY, 1, 0, &stop, &status) == SNUG_IO);
  CHECK(snug_reader_open(out, &reader, NULL) == SNUG_NOT_FOUND);
  stop = 0;
  CHECK(snug_compress_file(in, out, SNUG_ENTROPY, 1, 0, &stop, &status) == SNUG_OK);
  CHECK(snug_compress_file(in, out, SNUG_FIXED, 1, 0, NULL, &status) == SNUG_EXISTS);
  CHECK(snug_compress_file(in, out, SNUG_FIXED, 1, 1, NULL, &status) == SNUG_OK);
  CHECK(snug_compress_file(in, out, 77, 1, 1, NULL, &status) == SNUG_USAGE);
  CHECK(snug_compress_file(in, ".", SNUG_FIXED, 1, 1, NULL, &status) == SNUG_USAGE);
  CHECK(snug_compress_file("", out, SNUG_FIXED, 1, 1, NULL, &status) != SNUG_OK);
  CHECK(snug_compress_file(in, "", SNUG_FIXED, 1, 1, NULL, &status) == SNUG_USAGE);
  CHECK(snug_compress_file(NULL, out, SNUG_FIXED, 1, 1, NULL, &status) == SNUG_USAGE);
  CHECK(snug_reader_open(out, &reader, NULL) == SNUG_OK);
  CHECK(snug_reader_inspect(reader, &info, NULL) == SNUG_OK && info.compressed == 1);
  CHECK(info.stored_bytes < info.raw_bytes);
  read_all(reader);
  snug_reader_free(reader);
  CHECK(remove(out) == 0);
}

int main(void) {
  snug_reader* plain = open_data("sample.safetensors");
  snug_reader* compressed = open_data("compressed_v1.safetensors");
  read_all(plain);
  read_all(compressed);
  check_sample(plain);
  check_errors(plain);
  check_compress();
  snug_reader_free(plain);
  snug_reader_free(compressed);
  snug_reader_free(NULL);
  return 0;
}
