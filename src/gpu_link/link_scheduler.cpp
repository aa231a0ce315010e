#include "gpu_link/link_scheduler.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace snug::gpu_link {
namespace {

constexpr double kMicro = 1e-6;
constexpr std::size_t kMiB = std::size_t{1} << 20;

// Where to start from, as one H200 needs it: seconds for a call, for each MiB, and more for
// chunks from kLarge on, whose blocks are twice as large: slower, but they need less space.
struct Usual {
  double call, each_mib, large;
};
constexpr std::size_t kLarge = 4 * kMiB;
constexpr Usual kEncode[kNumModes] = {
    {0, 0, 0}, {22 * kMicro, 1.2 * kMicro, 0}, {32 * kMicro, 0.8 * kMicro, 7 * kMicro}};
constexpr Usual kPlace[kNumModes] = {{10 * kMicro, 0.5 * kMicro, 0},
                                     {19 * kMicro, 0.8 * kMicro, 0},
                                     {26 * kMicro, 0.4 * kMicro, 8 * kMicro}};
constexpr double kUsualRatio[kNumModes] = {1.0, 0.7531, 0.6702};
constexpr double kSmallRatio[kNumModes] = {1.0, 1.003, 1.015};  // over that of large chunks

constexpr std::size_t kMinPiece = 4 * LinkScheduler::kGrain;  // raw, worth a call
// Shorter copies say more about calls than about the link.
constexpr std::size_t kMinSample = 6 * LinkScheduler::kGrain;
constexpr std::size_t kFirstPiece = 8 * LinkScheduler::kGrain;  // while the rate is not known
constexpr double kPieceSeconds = 20 * kMicro;
constexpr std::size_t kMaxFrames = 8;
// Less is not worth what coding takes from other work on the GPU.
constexpr double kMinGain = 1.1;
constexpr double kMargin = 3 * kMicro;
constexpr double kBetween = 1.5 * kMicro;  // that the link loses with each frame
// What the link must save by a frame: both ends spend about that much on two more calls.
constexpr double kMinSaved = 4 * kMicro;
constexpr double kRateBytes = 4.0 * kMiB;  // of which a rate is made
constexpr double kHardlySmaller = 0.95;    // ratio from which on data counts as random
constexpr double kNew = 0.25;              // weight of a new sample
// Where the quick ones count: the weight of a slow one, and from which factor on it says no more.
constexpr double kRise = 0.15, kUnlucky = 1.25;
constexpr double kForget = 0.03;  // of what is known, at each message
// So many bytes pay for one attempt, after others did not compress.
constexpr std::uint64_t kProbeBytes = 8 * kMiB;

// Of so many messages of a size, one goes the other way; the first soon.
constexpr std::uint64_t kTryOther = 64, kTryAt = 4;
constexpr double kClearly = 0.97;

constexpr int idx(Mode mode) { return static_cast<int>(mode); }
double usual(const Usual& u, std::size_t num_bytes) {
  return u.call + u.each_mib * static_cast<double>(num_bytes) / static_cast<double>(kMiB) +
         (num_bytes >= kLarge ? u.large : 0);
}
void blend(double& value, double sample, double weight = kNew) {
  value += weight * (sample - value);
}
// Learns how much longer than usual something takes. One odd measurement (the first call
// allocates memory) or a peer that lies moves it by a quarter at most.
void learn_factor(double& factor, double seconds, double usual_seconds) {
  blend(factor, std::clamp(seconds / usual_seconds, 0.5 * factor, 2 * factor));
  factor = std::clamp(factor, 0.2, 50.0);
}

}  // namespace

double LinkScheduler::encode_seconds(Mode mode, std::size_t raw_bytes) const noexcept {
  return codecs_[idx(mode)].encode_factor * usual(kEncode[idx(mode)], raw_bytes);
}
double LinkScheduler::ratio(Mode mode, std::size_t raw_bytes) const noexcept {
  return codecs_[idx(mode)].ratio * (raw_bytes < kLarge ? kSmallRatio[idx(mode)] : 1);
}
double LinkScheduler::place_seconds(Mode mode, std::size_t raw_bytes) const noexcept {
  return codecs_[idx(mode)].place_factor * usual(kPlace[idx(mode)], raw_bytes);
}

// The last word has the clock: what a model promises may not come true.
bool LinkScheduler::begin_message(std::uint64_t num_bytes) noexcept {
  if (wanted_ == Mode::kRaw || num_bytes < kMinChunk) return true;
  skipped_bytes_ += num_bytes;
  if (skipped_bytes_ >= kProbeBytes) {
    skipped_bytes_ = 0;
    // What looks too slow to be used is not measured any more: forget that in time.
    for (CodecState& codec : codecs_)
      for (double* factor : {&codec.encode_factor, &codec.place_factor}) blend(*factor, 1, kForget);
    if (num_failures_ > 0) attempt_again();
  }
  if (wanted_ != Mode::kAuto) return true;
  SizeClass& size = classes_[std::bit_width(num_bytes)];
  const std::uint64_t turn = size.num_messages++ % kTryOther;
  const double raw = size.seconds_a_byte[0], coded = size.seconds_a_byte[1];
  // Where frames have beaten raw once, and take less than the link would for raw bytes, there is
  // nothing to try again.
  if (raw > 0 && coded > 0 && coded < raw && coded * link_rate_ < kClearly) return true;
  const bool codes = coded == 0 || raw == 0 || coded < raw;
  return turn == kTryAt ? !codes : codes;
}

void LinkScheduler::message_done(std::uint64_t num_bytes, bool had_frames,
                                 double seconds) noexcept {
  if (num_bytes < kMinChunk || seconds <= 0) return;
  double& known = classes_[std::bit_width(num_bytes)].seconds_a_byte[had_frames ? 1 : 0];
  const double sample = seconds / static_cast<double>(num_bytes);
  // The first after a pause waits for threads and caches, and any may have been unlucky: only
  // the quick ones tell what a way can do, as long as there are some.
  if (known == 0 || sample < known)
    known = sample;
  else
    blend(known, std::min(sample, kUnlucky * known), kRise);
}

// Rarely, where nothing has compressed for long: after 1, 3, 7, ... messages.
void LinkScheduler::attempt_again() noexcept {
  if (++num_skipped_ < 1 << std::min(num_failures_ - 1, 6)) return;
  num_skipped_ = 0;
  is_probing_ = true;
  for (const Mode mode : {Mode::kFixed, Mode::kEntropy})
    codecs_[idx(mode)].ratio = kUsualRatio[idx(mode)];
}

// The encoders make E bytes a second, which leave room for raw ones on the link.
double LinkScheduler::goodput(Mode mode, std::size_t chunk_bytes) const noexcept {
  const double ratio = this->ratio(mode, chunk_bytes);
  const auto bytes = static_cast<double>(chunk_bytes);
  const double encoders = max_encoding_ * bytes / encode_seconds(mode, chunk_bytes);
  const double link = bytes / (ratio * bytes / link_rate_ + kBetween);
  return std::min(link, link_rate_ + (1 - ratio) * encoders);
}

double LinkScheduler::finish(double rest, double link_busy, std::span<const LinkFrame> frames,
                             double tail_rate) const noexcept {
  const double piece = static_cast<double>(kMinPiece) / link_rate_;
  double raw = rest / link_rate_, now = link_busy, end = 0;
  for (const LinkFrame& frame : frames) {
    // Raw pieces fill the time until the frame is there, while there are any.
    const double gap = frame.ready - now > kLate ? frame.ready - now : 0;
    double filler = gap > 0 ? std::max(gap, piece) : 0;
    if (gap > 0 && raw < filler + piece) filler = raw;  // as gap_piece does
    raw -= filler;
    now = std::max(now + filler, frame.ready) + frame.on_link + kBetween;
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
  const double limit = finish(all, link_busy, frames, link_rate_) - kMargin;
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
      // It must pay even if nothing after it is coded; among those that do, the one is
      // best with which the rest, coded too, would end first.
      if (finish(all - bytes, link_busy, list, link_rate_) >= limit) continue;
      const double ends = finish(all - bytes, link_busy, list, rate);
      if (plan && ends >= best) continue;
      best = ends;
      plan = LinkPlan{mode, chunk};
    }
  }
  return plan;
}

// A short last piece is not worth a call of its own.
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
  // A power of two: how messages are cut must not depend on how well the rate is known.
  const double wanted = kPieceSeconds * link_rate_ / 1.4;
  std::size_t piece = kFirstPiece;
  while (piece < max_chunk_bytes_ && static_cast<double>(piece) < wanted) piece *= 2;
  return cut(rest, piece);
}

void LinkScheduler::sent(std::size_t num_bytes, double since_call, double since_last) noexcept {
  if (num_bytes < kMinSample || since_call <= 0) return;
  // So fast it is at least. Where copies end before the next one starts, that is all there is.
  const auto bytes = static_cast<double>(num_bytes);
  link_rate_ = std::max(link_rate_, bytes / since_call);
  if (since_last <= 0) return;
  // An arrival that is noticed late makes one copy look slow and the next one fast: sums are
  // right. Times are averaged, not rates: one wait must not look like many.
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
  learn_factor(codec.encode_factor, seconds, usual(kEncode[idx(mode)], raw_bytes));
  const double ratio =
      std::min(1.0, static_cast<double>(frame_bytes) / static_cast<double>(raw_bytes));
  // What does not compress is believed at once, of both codecs: they differ by less.
  if (ratio > kHardlySmaller) {
    if (is_probing_ || num_failures_ == 0) ++num_failures_;
    for (const Mode other : {Mode::kFixed, Mode::kEntropy}) codecs_[idx(other)].ratio = ratio;
  } else {
    num_failures_ = 0;
    blend(codec.ratio, raw_bytes < kLarge ? ratio / kSmallRatio[idx(mode)] : ratio);
  }
  is_probing_ = false;
}

void LinkScheduler::placed(Mode mode, std::size_t raw_bytes, double seconds) noexcept {
  if (seconds <= 0) return;
  learn_factor(codecs_[idx(mode)].place_factor, seconds, usual(kPlace[idx(mode)], raw_bytes));
}

}  // namespace snug::gpu_link
