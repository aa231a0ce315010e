#include "transfer/file_buffers.h"

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
    // One at a time: a long header takes much memory, and many peers may ask at once.
    static std::mutex parsing;
    const std::lock_guard lock(parsing);
    // A file that does not parse, or is compressed already, travels as bytes.
    const auto tensors = store::TensorFile::open(path);
    if (tensors && !(*tensors)->compressed() &&
        (*tensors)->file().num_bytes() == source->file_.num_bytes()) {
      auto extents = tensor_extents(**tensors);
      if (extents.size() <= wire::kMaxExtents) source->extents_ = std::move(extents);
    }
  }
  return source;
}

Status FileSink::begin(std::span<const Extent>, std::uint64_t num_bytes) {
  begun_ = true;
  if (num_bytes != announced_.num_bytes)
    return errors_.keep({{Code::kPeer, "the peer sends another size than it announced", kNowhere,
                          kNowhere, num_bytes, announced_.num_bytes},
                         folder_.path() + "/" + announced_.name});
  auto opened = folder_.open_file(announced_);
  if (opened) file_ = std::move(*opened);
  return errors_.keep(opened.status());
}

}  // namespace snug::transfer
