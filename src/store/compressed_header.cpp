#include "store/compressed_header.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "snug/codec.h"
#include "store/json_reader.h"
#include "store/stop.h"

namespace snug::store {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{64} << 10;
constexpr std::size_t kNumOwnKeys = 3;  // of the metadata
const std::string kNoHash(2 * 16, '0');

void append_numbers(std::string& text, const std::vector<std::uint64_t>& numbers) {
  const char* separator = "";
  for (const std::uint64_t number : numbers) {
    text += separator + std::to_string(number);
    separator = ",";
  }
}

// {"dtype":...,"shape":[...],"data_offsets":[begin,end]}
std::string slot_json(std::string_view dtype, const std::vector<std::uint64_t>& shape,
                      std::uint64_t begin, std::uint64_t end) {
  std::string text = "{\"dtype\":";
  append_json_string(text, dtype);
  text += ",\"shape\":[";
  append_numbers(text, shape);
  text += "],\"data_offsets\":[";
  append_numbers(text, {begin, end});
  return text += "]}";
}

}  // namespace

// JSON on its way to a file, or only counted. It fails, too, if the caller wants to stop.
class CompressedHeader::Text {
 public:
  explicit Text(const File* out) : out_(out), at_(kLengthBytes) {}

  void put(std::string_view text) { flush_if_long(text_ += text); }
  void put_string(std::string_view text) {
    put("\"");
    // In pieces: a value of the metadata may be as long as the header.
    for (; !text.empty(); text.remove_prefix(std::min(text.size(), kFlushBytes))) {
      append_json_text(text_, text.substr(0, kFlushBytes));
      flush_if_long(text_);
    }
    put("\"");
  }
  void flush() {
    if (status_.ok())
      status_ = out_ != nullptr ? out_->write_at(at_, text_.data(), text_.size()) : check_stop({});
    at_ += text_.size();
    text_.clear();
  }
  std::uint64_t end() const noexcept { return at_ + text_.size(); }
  const StoreStatus& status() const noexcept { return status_; }

 private:
  void flush_if_long(const std::string& text) {
    if (text.size() >= kFlushBytes) flush();
  }

  const File* const out_;
  std::uint64_t at_;
  std::string text_;
  StoreStatus status_;
};

void CompressedHeader::put_metadata(const TensorFile& in, const std::string& hash,
                                    Text& text) const {
  const Layout& plain = in.plain();
  text.put("{\"__metadata__\":{");
  bool first = true;
  const auto put = [&](std::string_view key, std::string_view value) {
    if (!std::exchange(first, false)) text.put(",");
    text.put_string(key);
    text.put(":");
    text.put_string(value);
  };
  put(kFormatKey, kFormatVersion);
  put(kSizeKey, std::to_string(plain.file_bytes));
  put(kHashKey, hash);
  for (std::size_t i = 0; i < plain.metadata.size(); ++i)
    put(plain.metadata[i].first, plain.metadata[i].second);
  text.put("}");
}

StoreStatus CompressedHeader::plan(const TensorFile& in) {
  const Layout& plain = in.plain();
  constexpr std::size_t kMaxOfInput = kMaxMetadata - kNumOwnKeys;
  if (plain.metadata.size() > kMaxOfInput)
    return {frame::failure(Code::kUsage, "too many metadata entries for a compressed file",
                           plain.metadata.size(), kMaxOfInput),
            in.path()};
  slots_.resize(plain.slots.size());
  std::uint64_t num_kept = 0;  // bytes
  // An offset that no tensor can pass has the most digits.
  std::uint64_t largest = packed_header_bound(plain.data_start) + plain.slots.size() * kTieBytes;
  for (const Slot& slot : plain.slots)
    largest += encode_bound(slot.num_bytes(), {.dtype = dtype_of(slot.dtype)});

  Text text(nullptr);
  put_metadata(in, kNoHash, text);
  for (std::size_t i = 0; i < slots_.size() && text.status().ok(); ++i) {
    const Slot slot = plain.slots[i];
    text.put(",");
    text.put_string(slot.name);
    text.put(":");
    std::string json = slot_json("U8", {largest}, largest, largest);
    if (may_be_kept(slot.num_bytes())) {
      std::string kept = slot_json(slot.dtype, slot.shape(), largest, largest);
      if (slot.num_bytes() <= kMinFrameBytes || kept.size() > json.size()) json = std::move(kept);
    }
    if (slot.num_bytes() <= kMinFrameBytes) {
      slots_[i] = {num_kept, num_kept + slot.num_bytes()};
      num_kept += slot.num_bytes();
      json = slot_json(slot.dtype, slot.shape(), slots_[i].begin, slots_[i].end);
    }
    text.put(json);
  }
  if (!text.status().ok()) return text.status();
  text.put(",");
  text.put_string(kHeaderTensor);
  text.put(":" + slot_json("U8", {largest}, largest, largest) + "}");
  // Padded so that the frames, whose sizes are multiples of 16, start at such offsets.
  data_start_ = frame::align_up(text.end() + num_kept) - num_kept;
  first_frame_ = data_end_ = data_start_ + num_kept;
  if (data_start_ - kLengthBytes > kMaxHeaderBytes)
    return {frame::failure(Code::kUsage, "too many tensors for one safetensors header",
                           data_start_ - kLengthBytes, kMaxHeaderBytes),
            in.path()};
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (plain.slots.end_of(i) - plain.slots.begin_of(i) <= kMinFrameBytes) {
      slots_[i].begin += data_start_;
      slots_[i].end += data_start_;
    }
  return {};
}

void CompressedHeader::place(std::size_t idx, std::uint64_t begin, std::uint64_t end) noexcept {
  slots_[idx] = {begin, end};
  data_end_ = end;
}

StoreStatus CompressedHeader::write(const TensorFile& in, const std::string& hash,
                                    std::uint64_t file_end, const File& out) const {
  const Layout& plain = in.plain();
  Text text(&out);
  put_metadata(in, hash, text);
  for (std::size_t i = 0; i < slots_.size() && text.status().ok(); ++i) {
    const Slot slot = plain.slots[i];
    const Place place = {slots_[i].begin - data_start_, slots_[i].end - data_start_};
    const std::uint64_t num_bytes = place.end - place.begin;
    // Read as TensorFile::is_frame reads it.
    const bool kept = slot.num_bytes() <= kMaxKeptBytes && num_bytes == slot.num_bytes();
    text.put(",");
    text.put_string(slot.name);
    text.put(":");
    text.put(kept ? slot_json(slot.dtype, slot.shape(), place.begin, place.end)
                  : slot_json("U8", {num_bytes}, place.begin, place.end));
  }
  if (!text.status().ok()) return text.status();
  text.put(",");
  text.put_string(kHeaderTensor);
  text.put(
      ":" +
      slot_json("U8", {file_end - data_end_}, data_end_ - data_start_, file_end - data_start_) +
      "}");
  assert(text.end() <= data_start_);
  text.put(std::string(static_cast<std::size_t>(data_start_ - text.end()), ' '));
  text.flush();
  const std::uint64_t json_bytes = data_start_ - kLengthBytes;
  return text.status().ok() ? out.write_at(0, &json_bytes, kLengthBytes) : text.status();
}

}  // namespace snug::store
