#include "transfer/file_buffers.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "store/tensor_file.h"
#include "wire/protocol.h"

namespace snug::transfer {
namespace {

// Neighbours of one dtype are one extent, so that small tensors share chunks.
std::vector<Extent> tensor_extents(const store::TensorFile& tensors) {
  const store::Layout& layout = tensors.plain();
  std::vector<Extent> extents = {{DType::kBytes, layout.data_start}};
  for (const store::Slot& slot : layout.slots) {
    const DType dtype = store::dtype_of(slot.dtype);
    if (slot.num_bytes() == 0) continue;
    if (extents.back().dtype == dtype) {
      extents.back().num_bytes += slot.num_bytes();
    } else {
      extents.push_back({dtype, slot.num_bytes()});
    }
  }
  return extents;
}

}  // namespace

StoreResult<std::shared_ptr<FileSource>> FileSource::open(const std::string& path) {
  auto source = std::make_shared<FileSource>();
  auto file = store::File::open(path);
  if (!file) return file.status();
  source->file_ = std::move(*file);
  source->extents_ = {{DType::kBytes, source->file_.num_bytes()}};
  constexpr std::string_view kSuffix = ".safetensors";
  if (path.ends_with(kSuffix)) {
    // What does not parse, or is compressed already, still is a file.
    const auto tensors = store::TensorFile::open(path);
    if (tensors && !(*tensors)->compressed() &&
        (*tensors)->file().num_bytes() == source->file_.num_bytes()) {
      auto extents = tensor_extents(**tensors);
      if (extents.size() <= wire::kMaxExtents) source->extents_ = std::move(extents);
    }
  }
  return source;
}

StoreStatus FileSink::system_error(const char* what, std::uint64_t byte) const {
  return store::io_error(what, path(), errno, byte);
}

Status FileSink::begin(std::span<const Extent>, std::uint64_t num_bytes) {
  begun_ = true;
  if (num_bytes != file_.num_bytes)
    return errors_.keep({{Code::kPeer, "the peer sends another size than it announced", kNowhere,
                          kNowhere, num_bytes, file_.num_bytes},
                         path(),
                         {},
                         {}});
  auto opened = folder_.open_file(file_);
  if (!opened) return errors_.keep(opened.status());
  fd_ = std::move(*opened);
  struct stat info;
  if (::fstat(fd_.get(), &info) != 0) return errors_.keep(system_error("cannot open"));
  existing_bytes_ = static_cast<std::uint64_t>(info.st_size);
  if (existing_bytes_ > num_bytes) {
    if (::ftruncate(fd_.get(), static_cast<off_t>(num_bytes)) != 0)
      return errors_.keep(system_error("cannot write"));
    existing_bytes_ = num_bytes;
  }
  return {};
}

Status FileSink::write(std::uint64_t offset, std::span<const std::byte> src) {
  while (!src.empty()) {
    const ssize_t n = ::pwrite(fd_.get(), src.data(), src.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errors_.keep(system_error("cannot write", offset));
    src = src.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Status FileSink::read_back(std::uint64_t offset, std::span<std::byte> dst) {
  while (!dst.empty()) {
    const ssize_t n = ::pread(fd_.get(), dst.data(), dst.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errors_.keep(system_error("cannot read", offset));
    if (n == 0) return errors_.keep({{Code::kIo, "file became shorter"}, path(), {}, {}});
    dst = dst.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

}  // namespace snug::transfer
