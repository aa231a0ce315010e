// A peer that was let in and follows a script of any bytes, against a real connection that sends
// and receives at the same time. Its messages are well formed, wrong in a field, or noise. Every
// transfer ends, and a receive that says it is done has the sender's bytes.
#include <cstring>
#include <memory>
#include <optional>

#include "fuzz/fuzz_frame.h"
#include "snug/codec.h"
#include "wire/memory_channel.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;
using wire::ControlType;
using wire::PayloadKind;

constexpr std::size_t kChunk = wire::kMinChunkBytes;
constexpr int kNumLanes = 2, kMaxSteps = 48;
constexpr std::uint64_t kNumTags = 3;

// Bytes of the script; zeros after its end.
class Script {
 public:
  Script(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  bool over() const { return at_ == end_; }
  std::uint8_t byte() { return over() ? std::uint8_t{0} : *at_++; }
  std::uint64_t number() {  // mostly small, sometimes anything
    const std::uint8_t first = byte();
    if (first < 224) return first % 8;
    std::uint64_t n = 0;
    for (int i = 0; i < 8; ++i) n = n << 8 | byte();
    return n;
  }
  Bytes bytes(std::size_t n) {
    Bytes all(n);
    for (std::byte& b : all) b = static_cast<std::byte>(byte());
    return all;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

// What the honest sender of a tag has: two chunks and a bit, of one dtype.
const Bytes& truth(std::uint64_t tag) {
  static const std::vector<Bytes> all = [] {
    std::vector<Bytes> made(kNumTags);
    for (std::size_t t = 0; t < kNumTags; ++t) {
      made[t].resize(2 * kChunk + 1000 * t);
      for (std::size_t i = 0; i < made[t].size(); ++i)
        made[t][i] = static_cast<std::byte>(i % 2 == 0 ? i * 7 + t : 0x3D + i / 5000);
    }
    return made;
  }();
  return all[tag % kNumTags];
}
DType dtype_of(std::uint64_t tag) { return tag % kNumTags == 0 ? DType::kBytes : DType::kBF16; }

// Takes its bytes by write, and has some of an earlier attempt, of which one is wrong.
struct OldFile : wire::Sink {
  Status begin(std::span<const wire::Extent>, std::uint64_t num_bytes) override {
    return num_bytes == bytes.size() ? Status{} : Status{Code::kDstTooSmall, "another size"};
  }
  std::span<std::byte> view(std::uint64_t, std::size_t) override { return {}; }
  Status write(std::uint64_t offset, std::span<const std::byte> src) override {
    std::memcpy(bytes.data() + offset, src.data(), src.size());
    return {};
  }
  std::uint64_t existing_bytes() override { return 2 * kChunk; }
  Status read_back(std::uint64_t offset, std::span<std::byte> dst) override {
    std::memcpy(dst.data(), bytes.data() + offset, dst.size());
    return {};
  }
  Bytes bytes;
};

class Session {
 public:
  Session(const std::uint8_t* data, std::size_t size) : script_(data, size) {
    wire::Options options;
    options.num_lanes = kNumLanes;
    options.chunk_bytes = kChunk;
    options.timeout = 2s;
    options.mode = static_cast<wire::Mode>(script_.byte() % 4);
    peer_ = make_bare_peer(options);
    for (std::uint64_t tag = 0; tag < kNumTags; ++tag) {
      const std::span<const std::byte> from[] = {truth(tag)};
      sent_.push_back(peer_.connection.send(tag, dtype_of(tag), from));
    }
    for (std::size_t tag = 0; tag < 2; ++tag) {
      got_[tag].resize(truth(tag).size());
      const std::span<std::byte> to[] = {got_[tag]};
      received_.push_back(peer_.connection.recv(tag, to));
    }
    old_->bytes = truth(2);
    old_->bytes[kChunk + 5] ^= std::byte{1};
    received_.push_back(peer_.connection.recv(2, old_));
  }

  void run() {
    for (int i = 0; i < kMaxSteps && !script_.over() && peer_.connection.status().ok(); ++i) step();
    for (const auto& channel : peer_.channels) channel->shut_down();
    peer_.connection.close();
    for (const auto& transfer : sent_) {
      (void)transfer.wait_for(20s);  // kTimeout may also be how the connection ended
      require(transfer.done());
    }
    for (std::size_t tag = 0; tag < received_.size(); ++tag) {
      const Status s = received_[tag].wait_for(20s);
      require(received_[tag].done());
      if (s.ok() && !moved_) require((tag < 2 ? got_[tag] : old_->bytes) == truth(tag));
    }
    for (const std::uint64_t tag : {0, 1, 2}) require(truth(tag).size() == 2 * kChunk + 1000 * tag);
  }

 private:
  static wire::Deadline soon() { return net::after(20ms); }

  void step() {
    switch (script_.byte() % 10) {
      case 0: offer(script_.byte() % kNumTags); break;
      case 1: accept(); break;
      case 2: chunk(script_.byte()); break;
      case 3: chunk(0); break;
      case 4: report(); break;
      case 5: tell(ControlType::kDone, {}); break;
      case 6:
        tell(static_cast<ControlType>(script_.number()), script_.bytes(script_.byte()));
        break;
      case 7: noise(); break;
      case 8: tell(ControlType::kNote, script_.bytes(script_.byte())); break;
      default: settle(); break;
    }
  }

  void tell(ControlType type, const Bytes& payload) {
    (void)peer_.tell(type, script_.number(), payload, soon());
  }

  // Numbers go up from 1, as those of an honest sender, unless the script wants another.
  void offer(std::uint64_t tag) {
    const std::uint8_t wrong = script_.byte();
    std::vector<wire::Extent> extents = {{dtype_of(tag), truth(tag).size()}};
    if (wrong >= 250) extents = {{DType::kF32, script_.number()}, {DType::kBytes, 3}};
    const auto table = wire::ChunkTable::make(extents, wrong == 249 ? 2 * kChunk : kChunk);
    if (!table) return;
    std::string payload = wire::offer_payload(tag, *table);
    if (wrong == 248) payload[script_.byte() % payload.size()] = static_cast<char>(script_.byte());
    const std::uint64_t number = wrong == 247 ? script_.number() : ++num_offers_;
    if (number < 8) offered_[number] = tag;
    (void)peer_.tell(ControlType::kOffer, number, std::as_bytes(std::span(payload)), soon());
    settle();
  }

  // With hashes of what this side has, right or wrong.
  void accept() {
    const std::uint64_t number = script_.number();
    const std::size_t num_known = script_.byte() % 4;
    std::vector<std::uint64_t> known;
    for (std::size_t i = 0; i < num_known && number > 0; ++i) {
      const Bytes& all = truth(number - 1);
      const auto place = std::span(all).subspan(std::min(i * kChunk, all.size()));
      known.push_back(wire::hash_bytes(place.first(std::min(kChunk, place.size()))));
      if (script_.byte() % 4 == 0) ++known.back();
    }
    (void)peer_.tell(ControlType::kAccept, number, std::as_bytes(std::span(known)), soon());
  }

  void report() {
    wire::ReceiveProgress sums;
    sums.active_nanoseconds = script_.number();
    for (auto& n : sums.raw_bytes) n = script_.number();
    for (auto& n : sums.wire_bytes) n = script_.number();
    (void)peer_.tell(ControlType::kProgress, 0, wire::bytes_of(sums), soon());
  }

  // A chunk of an offered message: raw, as a frame, under zstd's kind, or known; right for fault 0.
  // Whatever is wrong with it, the hash is that of the honest bytes.
  void chunk(std::uint8_t fault) {
    wire::LaneHeader header;
    header.message = 1 + script_.byte() % 4;
    header.chunk_idx = script_.byte() % 4;
    if (!offered_[header.message]) moved_ = true;  // an offer that follows may overtake it
    const std::uint64_t tag = offered_[header.message].value_or(0);
    const Bytes& all = truth(tag);
    const std::size_t at = std::min<std::size_t>(header.chunk_idx * kChunk, all.size());
    const auto raw = std::span(all).subspan(at, std::min(kChunk, all.size() - at));
    header.raw_bytes = raw.size();
    header.raw_hash = wire::hash_bytes(raw);
    Bytes payload(raw.begin(), raw.end());
    const std::uint8_t kind = script_.byte() % 8;
    if (kind == 1) {
      Bytes frame(encode_bound(raw.size()));
      const auto n = encode(raw, frame, {.dtype = dtype_of(tag)});
      frame.resize(n ? *n : 0);
      payload = std::move(frame);
      header.kind = PayloadKind::kFrame;
      header.mode = wire::Mode::kEntropy;
      header.has_raw_hash = script_.byte() % 2;
    } else if (kind == 2) {
      header.kind = PayloadKind::kZstd;
      payload = script_.bytes(script_.byte());
    } else if (kind == 3) {
      header.kind = PayloadKind::kKnown;
      payload.clear();
    }
    header.payload_bytes = payload.size();
    spoil(fault, header, payload);
    wire::seal(header);
    if (fault == 20) header.reserved2 = 1;
    wire::Channel& lane = *peer_.channels[1 + script_.byte() % kNumLanes];
    (void)lane.send(wire::bytes_of(header), payload, soon());
  }

  void spoil(std::uint8_t fault, wire::LaneHeader& header, Bytes& payload) {
    switch (fault) {
      case 1:
      case 2:
      case 3:
        if (!payload.empty()) payload[script_.number() % payload.size()] ^= std::byte{16};
        break;
      case 4: header.payload_bytes = script_.number(); break;
      case 5: header.raw_bytes = script_.number(); break;
      case 6: header.message = script_.number(), moved_ = true; break;
      case 7: header.chunk_idx = script_.number(), moved_ = true; break;
      case 8: header.kind = static_cast<PayloadKind>(script_.byte()); break;
      case 9: header.mode = static_cast<wire::Mode>(script_.byte()); break;
      case 10:
        header.has_raw_hash = 0;
        if (!payload.empty()) payload[0] ^= std::byte{1};
        break;
      case 11: payload.resize(payload.size() / 2); break;  // the rest never comes
      default: break;
    }
  }

  void noise() {
    wire::Channel& channel = *peer_.channels[script_.byte() % (kNumLanes + 1)];
    (void)channel.send(script_.bytes(script_.byte()), {}, soon());
  }

  // Hears what the connection says until it is quiet for a moment.
  void settle() {
    while (peer_.control().wait_readable(net::after(1ms)).ok()) {
      wire::ControlHeader header;
      if (!peer_.control().recv(wire::writable_bytes_of(header), soon()).ok()) return;
      Bytes payload(header.payload_bytes);
      if (!peer_.control().recv(payload, soon()).ok()) return;
    }
  }

  Script script_;
  BarePeer peer_;
  std::uint64_t num_offers_ = 0;
  std::optional<std::uint64_t> offered_[8];  // tags by message number
  bool moved_ = false;  // a peer that was let in may put its bytes elsewhere: they are its own
  Bytes got_[2];
  const std::shared_ptr<OldFile> old_ = std::make_shared<OldFile>();
  std::vector<wire::Transfer> sent_, received_;
};

}  // namespace
}  // namespace snug::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  snug::test::Session(data, size).run();
  return 0;
}
