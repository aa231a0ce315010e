// gpu_link/link_scheduler.h - which chunk of a message travels next, and how.
//
// The link is never idle: whenever no frame is ready, it gets a raw piece from the back of the
// message, while the encoders work from the front. A chunk is encoded only if its frame will arrive
// and be decoded before the whole rest would have arrived raw, and if the encoders are fast enough
// to matter. Both are predicted from measurements: the rate of the link, time and ratio of each
// codec. Small messages and the ends of large ones travel raw by the same rule.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "snug/wire.h"

namespace snug::gpu_link {

using wire::kNumModes;
using wire::Mode;

// A frame that is being encoded or waits for the link.
struct LinkFrame {
  double ready;    // seconds from now
  double on_link;  // seconds of link time
  double place;    // seconds from its arrival until the chunk is in its place
};

struct LinkPlan {
  Mode mode = Mode::kRaw;
  std::size_t num_bytes = 0;
};

class LinkScheduler {
 public:
  LinkScheduler(Mode wanted, int max_encoding, std::size_t max_chunk_bytes) noexcept
      : wanted_(wanted), max_encoding_(max_encoding), max_chunk_bytes_(max_chunk_bytes) {}

  // A new message. False if all of it should travel raw, because messages of this size have been
  // faster that way.
  bool begin_message(std::uint64_t num_bytes) noexcept;
  void message_done(std::uint64_t num_bytes, bool had_frames, double seconds) noexcept;
  // The next chunk from the front to encode, if that pays: `rest` bytes are not claimed, the link
  // is busy for `link_busy` seconds and then has `frames` to send, in the order in which they get
  // ready.
  std::optional<LinkPlan> plan_coded(std::uint64_t rest, double link_busy,
                                     std::span<const LinkFrame> frames) const noexcept;
  // How much of the back to send raw: if no frame is under way, and to fill a gap of `seconds`.
  std::size_t raw_piece(std::uint64_t rest) const noexcept;
  std::size_t gap_piece(std::uint64_t rest, double seconds) const noexcept;

  // Measurements: the link (from the call until the arrival was noticed and, if it had no pause,
  // from the last arrival to this one), an encoder, a decoder.
  void sent(std::size_t num_bytes, double since_call, double since_last) noexcept;
  void encoded(Mode mode, std::size_t raw_bytes, std::size_t frame_bytes, double seconds) noexcept;
  void placed(Mode mode, std::size_t raw_bytes, double seconds) noexcept;

  double link_rate() const noexcept { return link_rate_; }  // bytes a second; 0: unknown
  double ratio(Mode mode, std::size_t raw_bytes = ~std::size_t{0}) const noexcept;
  // From the call until the frame is ready, and from the arrival until the chunk is in its place.
  double encode_seconds(Mode mode, std::size_t raw_bytes) const noexcept;
  double place_seconds(Mode mode, std::size_t raw_bytes) const noexcept;

  static constexpr std::size_t kGrain = std::size_t{64} << 10;  // chunks start at multiples
  // Smaller chunks are not encoded.
  static constexpr std::size_t kMinChunk = std::size_t{1} << 20;
  static constexpr std::size_t kChunks[] = {4 * kMinChunk, 3 * kMinChunk, 2 * kMinChunk,
                                            3 * kMinChunk / 2, kMinChunk};
  static constexpr double kMaxFrameWait = 3e-6;  // for which the link may be idle before a frame

 private:
  static constexpr double kDefaultRatio[kNumModes] = {1.0, 0.7531, 0.6702};  // of BF16 weights

  struct CodecState {
    double ratio;                                // of large chunks
    double encode_factor = 1, place_factor = 1;  // measured time over the default
  };
  // Messages of about one size, without and with frames.
  struct SizeClass {
    double seconds_a_byte[2] = {};  // of the fastest recent ones; 0: unknown
    std::uint64_t num_messages = 0;
  };
  void attempt_again() noexcept;
  std::size_t cut(std::uint64_t rest, std::size_t piece) const noexcept;
  // Original bytes a second with this codec in a long message.
  double goodput(Mode mode, std::size_t chunk_bytes) const noexcept;
  // Seconds until everything is in its place, if `rest` travels raw between the frames and what is
  // left behind the last one at tail_rate.
  double finish(double rest, double link_busy, std::span<const LinkFrame> frames,
                double tail_rate) const noexcept;

  const Mode wanted_;
  const int max_encoding_;
  const std::size_t max_chunk_bytes_;
  double link_rate_ = 0;
  double sent_bytes_ = 0, sent_seconds_ = 0;  // since the last sample of the rate
  SizeClass classes_[64];
  bool is_probing_ = false;                 // the next frame is an attempt
  std::uint64_t skipped_bytes_ = 0;         // since the last kProbeBytes
  int num_failures_ = 0, num_skipped_ = 0;  // attempts that failed in a row; skipped since
  CodecState codecs_[kNumModes] = {{kDefaultRatio[0]}, {kDefaultRatio[1]}, {kDefaultRatio[2]}};
};

}  // namespace snug::gpu_link
