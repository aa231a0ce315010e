#include "gpu_link/link_scheduler.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace snug::gpu_link {
namespace {

constexpr double kMicro = 1e-6;
constexpr std::size_t kMiB = std::size_t{1} << 20;

// Defaults, measured on one H200: seconds for a call, for each MiB, and in addition for chunks from
// kLarge on, whose blocks are twice as large. Measurements correct them on other GPUs.
struct DefaultCost {
  double call, per_mib, large;
};
constexpr std::size_t kLarge = 4 * kMiB;
constexpr DefaultCost kEncodeCost[kNumModes] = {
    {0, 0, 0}, {22 * kMicro, 1.2 * kMicro, 0}, {32 * kMicro, 0.8 * kMicro, 7 * kMicro}};
constexpr DefaultCost kPlaceCost[kNumModes] = {{10 * kMicro, 0.5 * kMicro, 0},
                                               {19 * kMicro, 0.8 * kMicro, 0},
                                               {26 * kMicro, 0.4 * kMicro, 8 * kMicro}};
constexpr double kSmallChunkRatio[kNumModes] = {1.0, 1.003, 1.015};  // relative to large chunks

constexpr std::size_t kMinPiece = 4 * LinkScheduler::kGrain;       // smallest raw piece
constexpr std::size_t kMinRateSample = 6 * LinkScheduler::kGrain;  // below, call overhead dominates
constexpr std::size_t kFirstPiece = 8 * LinkScheduler::kGrain;     // while the rate is unknown
constexpr double kPieceSeconds = 20 * kMicro;
constexpr std::size_t kMaxFrames = 8;
// A smaller gain is not worth what coding takes from other work on the GPU.
constexpr double kMinGain = 1.1;
constexpr double kMinLead = 3 * kMicro;     // by which a coded chunk must beat sending all raw
constexpr double kFrameGap = 1.5 * kMicro;  // link time lost with each frame
// What a frame must save the link: about the cost of two more calls at both ends.
constexpr double kMinSaved = 4 * kMicro;
constexpr double kRateBytes = 4.0 * kMiB;  // copies that make one sample of the link's rate
constexpr double kIncompressible = 0.95;   // ratio from which on data counts as random

// Weights of a new sample in exponential moving averages (EWMA).
constexpr double kSampleWeight = 0.25;
constexpr double kSlowerWeight = 0.15;  // of a slower message, where the fastest ones count
constexpr double kForgetWeight = 0.03;  // of the defaults, every kProbeBytes
constexpr double kMaxSlower = 1.25;     // a message never counts as slower by more than this factor
// Bytes sent between two attempts to compress, after earlier ones failed.
constexpr std::uint64_t kProbeBytes = 8 * kMiB;

// One message in kTrialPeriod of a size class is sent the other way, the first time soon.
constexpr std::uint64_t kTrialPeriod = 64, kFirstTrial = 4;
constexpr double kClearWin = 0.97;  // coded time over raw link time, below which trials end

constexpr int idx(Mode mode) { return static_cast<int>(mode); }
double seconds_of(const DefaultCost& cost, std::size_t num_bytes) {
  return cost.call + cost.per_mib * static_cast<double>(num_bytes) / static_cast<double>(kMiB) +
         (num_bytes >= kLarge ? cost.large : 0);
}
void blend(double& value, double sample, double weight = kSampleWeight) {
  value += weight * (sample - value);
}
// Learns how much longer than the default something takes. An outlier (the first call allocates
// memory) or a peer that lies moves it by a quarter at most.
void learn_factor(double& factor, double seconds, double default_seconds) {
  blend(factor, std::clamp(seconds / default_seconds, 0.5 * factor, 2 * factor));
  factor = std::clamp(factor, 0.2, 50.0);
}

}  // namespace

double LinkScheduler::encode_seconds(Mode mode, std::size_t raw_bytes) const noexcept {
  return codecs_[idx(mode)].encode_factor * seconds_of(kEncodeCost[idx(mode)], raw_bytes);
}
double LinkScheduler::ratio(Mode mode, std::size_t raw_bytes) const noexcept {
  return codecs_[idx(mode)].ratio * (raw_bytes < kLarge ? kSmallChunkRatio[idx(mode)] : 1);
}
double LinkScheduler::place_seconds(Mode mode, std::size_t raw_bytes) const noexcept {
  return codecs_[idx(mode)].place_factor * seconds_of(kPlaceCost[idx(mode)], raw_bytes);
}

// The model decides chunk by chunk; measured times of whole messages overrule it.
bool LinkScheduler::begin_message(std::uint64_t num_bytes) noexcept {
  if (wanted_ == Mode::kRaw || num_bytes < kMinChunk) return true;
  skipped_bytes_ += num_bytes;
  if (skipped_bytes_ >= kProbeBytes) {
    skipped_bytes_ = 0;
    // A codec that looks too slow is not used, hence not measured: slowly return to the defaults.
    for (CodecState& codec : codecs_)
      for (double* factor : {&codec.encode_factor, &codec.place_factor})
        blend(*factor, 1, kForgetWeight);
    if (num_failures_ > 0) attempt_again();
  }
  if (wanted_ != Mode::kAuto) return true;
  SizeClass& size = classes_[std::bit_width(num_bytes)];
  const std::uint64_t turn = size.num_messages++ % kTrialPeriod;
  const double raw = size.seconds_a_byte[0], coded = size.seconds_a_byte[1];
  // Frames have beaten raw, and take less time than the link needs for raw bytes: no more trials.
  if (raw > 0 && coded > 0 && coded < raw && coded * link_rate_ < kClearWin) return true;
  const bool codes = coded == 0 || raw == 0 || coded < raw;
  return turn == kFirstTrial ? !codes : codes;
}

void LinkScheduler::message_done(std::uint64_t num_bytes, bool had_frames,
                                 double seconds) noexcept {
  if (num_bytes < kMinChunk || seconds <= 0) return;
  double& known = classes_[std::bit_width(num_bytes)].seconds_a_byte[had_frames ? 1 : 0];
  const double sample = seconds / static_cast<double>(num_bytes);
  // Messages after a pause wait for threads and caches, so the fastest recent ones count.
  if (known == 0 || sample < known)
    known = sample;
  else
    blend(known, std::min(sample, kMaxSlower * known), kSlowerWeight);
}

// Exponential backoff for data that does not compress: attempts after 1, 3, 7, ... messages.
void LinkScheduler::attempt_again() noexcept {
  if (++num_skipped_ < 1 << std::min(num_failures_ - 1, 6)) return;
  num_skipped_ = 0;
  is_probing_ = true;
  for (const Mode mode : {Mode::kFixed, Mode::kEntropy})
    codecs_[idx(mode)].ratio = kDefaultRatio[idx(mode)];
}

// The encoders save the link (1 - ratio) of their rate, which raw bytes can use.
double LinkScheduler::goodput(Mode mode, std::size_t chunk_bytes) const noexcept {
  const double ratio = this->ratio(mode, chunk_bytes);
  const auto bytes = static_cast<double>(chunk_bytes);
  const double encoders = max_encoding_ * bytes / encode_seconds(mode, chunk_bytes);
  const double link = bytes / (ratio * bytes / link_rate_ + kFrameGap);
  return std::min(link, link_rate_ + (1 - ratio) * encoders);
}

double LinkScheduler::finish(double rest, double link_busy, std::span<const LinkFrame> frames,
                             double tail_rate) const noexcept {
  const double piece = static_cast<double>(kMinPiece) / link_rate_;
  double raw = rest / link_rate_, now = link_busy, end = 0;
  for (const LinkFrame& frame : frames) {
    // Raw pieces fill the gap until the frame is ready, while there are any.
    const double gap = frame.ready - now > kMaxFrameWait ? frame.ready - now : 0;
    double filler = gap > 0 ? std::max(gap, piece) : 0;
    if (gap > 0 && raw < filler + piece) filler = raw;  // as gap_piece does
    raw -= filler;
    now = std::max(now + filler, frame.ready) + frame.on_link + kFrameGap;
    end = std::max(end, now + frame.place);
  }
  return std::max(end, now + raw * link_rate_ / tail_rate + place_seconds(Mode::kRaw, kMinPiece));
}

std::optional<LinkPlan> LinkScheduler::plan_coded(
    std::uint64_t rest, double link_busy, std::span<const LinkFrame> frames) const noexcept {
  if (wanted_ == Mode::kRaw || link_rate_ == 0 || frames.size() >= kMaxFrames ||
      (is_probing_ && !frames.empty()))
    return std::nullopt;
  const auto all = static_cast<double>(rest);
  const double limit = finish(all, link_busy, frames, link_rate_) - kMinLead;
  std::optional<LinkPlan> plan;
  double best = 0;
  for (const Mode mode : {Mode::kEntropy, Mode::kFixed}) {
    if (wanted_ != Mode::kAuto && wanted_ != mode) continue;
    for (const std::size_t chunk : kChunks) {
      const double rate = goodput(mode, chunk);
      if (chunk > rest || chunk > max_chunk_bytes_ || rate < kMinGain * link_rate_) continue;
      const auto bytes = static_cast<double>(chunk);
      if ((1 - ratio(mode, chunk)) * bytes < kMinSaved * link_rate_) continue;
      LinkFrame with[kMaxFrames + 1];
      const LinkFrame frame{encode_seconds(mode, chunk), ratio(mode, chunk) * bytes / link_rate_,
                            place_seconds(mode, chunk)};
      std::copy(frames.begin(), frames.end(), with);
      with[frames.size()] = frame;
      for (std::size_t i = frames.size(); i > 0 && with[i].ready < with[i - 1].ready; --i)
        std::swap(with[i], with[i - 1]);
      const std::span<const LinkFrame> list(with, frames.size() + 1);
      // It must pay even if nothing after it is coded. Among those that do, take the one with which
      // the rest, coded too, would end first.
      if (finish(all - bytes, link_busy, list, link_rate_) >= limit) continue;
      const double ends = finish(all - bytes, link_busy, list, rate);
      if (plan && ends >= best) continue;
      best = ends;
      plan = LinkPlan{mode, chunk};
    }
  }
  return plan;
}

// A short rest is not worth a call of its own.
std::size_t LinkScheduler::cut(std::uint64_t rest, std::size_t piece) const noexcept {
  return static_cast<std::size_t>(rest < piece + kMinPiece && rest <= max_chunk_bytes_
                                      ? rest
                                      : std::min<std::uint64_t>(piece, rest));
}

std::size_t LinkScheduler::gap_piece(std::uint64_t rest, double seconds) const noexcept {
  const double wanted = std::min(link_rate_ * seconds, static_cast<double>(max_chunk_bytes_));
  return cut(
      rest, std::max(kMinPiece, (static_cast<std::size_t>(wanted) + kGrain - 1) / kGrain * kGrain));
}

std::size_t LinkScheduler::raw_piece(std::uint64_t rest) const noexcept {
  // A power of two, so that small errors of the rate do not change how messages are cut.
  const double wanted = kPieceSeconds * link_rate_ / 1.4;
  std::size_t piece = kFirstPiece;
  while (piece < max_chunk_bytes_ && static_cast<double>(piece) < wanted) piece *= 2;
  return cut(rest, piece);
}

void LinkScheduler::sent(std::size_t num_bytes, double since_call, double since_last) noexcept {
  if (num_bytes < kMinRateSample || since_call <= 0) return;
  // A lower bound, and all there is where copies end before the next one starts.
  const auto bytes = static_cast<double>(num_bytes);
  link_rate_ = std::max(link_rate_, bytes / since_call);
  if (since_last <= 0) return;
  // An arrival noticed late makes one copy look slow and the next one fast, so sums are used. Times
  // are averaged, not rates, so that one wait does not count as many.
  sent_bytes_ += bytes;
  sent_seconds_ += since_last;
  if (sent_bytes_ < kRateBytes) return;
  double seconds_a_byte = 1 / link_rate_;
  blend(seconds_a_byte, sent_seconds_ / sent_bytes_);
  link_rate_ = 1 / seconds_a_byte;
  sent_bytes_ = sent_seconds_ = 0;
}

void LinkScheduler::encoded(Mode mode, std::size_t raw_bytes, std::size_t frame_bytes,
                            double seconds) noexcept {
  CodecState& codec = codecs_[idx(mode)];
  learn_factor(codec.encode_factor, seconds, seconds_of(kEncodeCost[idx(mode)], raw_bytes));
  const double ratio =
      std::min(1.0, static_cast<double>(frame_bytes) / static_cast<double>(raw_bytes));
  // Incompressible data shows at once, for both codecs: their ratios differ by less.
  if (ratio > kIncompressible) {
    if (is_probing_ || num_failures_ == 0) ++num_failures_;
    for (const Mode other : {Mode::kFixed, Mode::kEntropy}) codecs_[idx(other)].ratio = ratio;
  } else {
    num_failures_ = 0;
    blend(codec.ratio, raw_bytes < kLarge ? ratio / kSmallChunkRatio[idx(mode)] : ratio);
  }
  is_probing_ = false;
}

void LinkScheduler::placed(Mode mode, std::size_t raw_bytes, double seconds) noexcept {
  if (seconds <= 0) return;
  learn_factor(codecs_[idx(mode)].place_factor, seconds,
               seconds_of(kPlaceCost[idx(mode)], raw_bytes));
}

}  // namespace snug::gpu_link
