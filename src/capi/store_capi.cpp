// The C ABI of snug/store.h.
#include <filesystem>
#include <string>

#include "capi/store_objects.h"

using snug::Code;
using snug::StoreStatus;
using snug::capi::call;
using snug::capi::deref;

namespace {

constexpr snug::Status kNoEntry{Code::kNotFound, "no entry with this number"};

const snug::TensorEntry& tensor_of(const snug_reader* reader, size_t idx) {
  const snug_reader& r = deref(reader);
  if (idx >= r.reader.num_tensors()) throw snug::capi::Refused{kNoEntry};
  const std::lock_guard lock(r.mutex);
  const auto at = r.entries.find(idx);
  if (at != r.entries.end()) return at->second;
  return r.entries.emplace(idx, r.reader.tensor(idx)).first->second;
}

// Bytes [first, first + count) of a tensor.
StoreStatus read_bytes(const snug_reader& reader, size_t idx, uint64_t first, uint64_t count,
                       std::span<std::byte> dst, int num_threads, size_t* written) {
  const snug::TensorEntry& tensor = tensor_of(&reader, idx);
  if (dst.size() < count)
    return {{Code::kDstTooSmall, "the buffer cannot hold the result", snug::kNowhere,
             snug::kNowhere, dst.size(), count},
            reader.reader.path(),
            tensor.name,
            {}};
  StoreStatus status = reader.reader.read_bytes(tensor, first, dst.first(count), num_threads);
  if (status.ok() && written != nullptr) *written = count;
  return status;
}

}  // namespace

int snug_reader_open(const char* path, snug_reader** reader, snug_status* status) {
  return snug::capi::create(status, reader, [&] { return snug::Reader::open(&deref(path)); });
}

int snug_reader_inspect(const snug_reader* reader, snug_reader_info* info, snug_status* status) {
  return call(status, [&] {
    const snug::Reader& r = deref(reader).reader;
    deref(info) = {r.num_tensors(),  r.num_metadata(), r.raw_bytes(),
                   r.stored_bytes(), r.compressed(),   0};
    return snug::Status{};
  });
}

int snug_reader_tensor(const snug_reader* reader, size_t idx, snug_tensor_info* info,
                       snug_status* status) {
  return call(status, [&] {
    const snug::TensorEntry& t = tensor_of(reader, idx);
    deref(info) = {t.name.c_str(),
                   t.name.size(),
                   t.dtype.c_str(),
                   t.shape.data(),
                   t.shape.size(),
                   t.raw_bytes,
                   t.stored_bytes,
                   t.file_offset,
                   static_cast<int32_t>(t.kind),
                   0};
    return snug::Status{};
  });
}

int snug_reader_find(const snug_reader* reader, const char* name, size_t* idx,
                     snug_status* status) {
  return call(status, [&]() -> StoreStatus {
    const snug::Reader& r = deref(reader).reader;
    const auto found = r.find(&deref(name));
    if (!found) return {{Code::kNotFound, "no such tensor"}, r.path(), name, {}};
    deref(idx) = found->idx;
    return {};
  });
}

int snug_reader_read(const snug_reader* reader, size_t idx, void* dst, size_t dst_bytes,
                     int num_threads, size_t* written, snug_status* status) {
  return call(status, [&] {
    return read_bytes(deref(reader), idx, 0, tensor_of(reader, idx).raw_bytes,
                      snug::capi::out(dst, dst_bytes), num_threads, written);
  });
}

int snug_reader_read_rows(const snug_reader* reader, size_t idx, uint64_t first_row,
                          uint64_t last_row, void* dst, size_t dst_bytes, int num_threads,
                          size_t* written, snug_status* status) {
  return call(status, [&] {
    const auto range = deref(reader).reader.row_bytes(tensor_of(reader, idx), first_row, last_row);
    if (!range) return range.status();
    return read_bytes(*reader, idx, range->first, range->second, snug::capi::out(dst, dst_bytes),
                      num_threads, written);
  });
}

int snug_reader_read_bytes(const snug_reader* reader, size_t idx, uint64_t first, void* dst,
                           size_t dst_bytes, int num_threads, snug_status* status) {
  return call(status, [&] {
    return read_bytes(deref(reader), idx, first, dst_bytes, snug::capi::out(dst, dst_bytes),
                      num_threads, nullptr);
  });
}

int snug_reader_load(const snug_reader* reader, const snug_load_target* targets, size_t num_targets,
                     int num_threads, snug_status* status) {
  return call(status, [&] {
    return deref(reader).reader.read_all(snug::capi::to_cpp(targets, num_targets), num_threads);
  });
}

int snug_reader_metadata(const snug_reader* reader, size_t idx, snug_metadata_info* info,
                         snug_status* status) {
  return call(status, [&] {
    const snug::Reader& r = deref(reader).reader;
    if (idx >= r.num_metadata()) throw snug::capi::Refused{kNoEntry};
    const auto [key, value] = r.metadata(idx);
    deref(info) = {key.data(), value.data(), key.size(), value.size()};
    return snug::Status{};
  });
}

void snug_reader_free(snug_reader* reader) { delete reader; }

int snug_compress_file(const char* in, const char* out, int codec, int num_threads, int force,
                       const volatile int* stop, snug_status* status) {
  return call(status, [&]() -> StoreStatus {
    const std::string from = &deref(in), to = &deref(out);
    std::error_code error;
    // compress_path makes up names if it gets none.
    if (to.empty() ||
        (std::filesystem::is_directory(to, error) && !std::filesystem::is_directory(from, error)))
      return {{Code::kUsage, "needs the name of a file"}, to, {}, {}};
    snug::StoreOptions options;
    options.codec = snug::capi::to_enum<snug::Codec>(codec);
    options.num_threads = num_threads;
    options.force = force != 0;
    if (stop != nullptr) {
      if (*stop != 0) return {{Code::kIo, "stopped on request"}, from, {}, {}};
      options.progress = [stop](const snug::Progress&) { return *stop == 0; };
    }
    return snug::compress_path(from, to, options).status();
  });
}
