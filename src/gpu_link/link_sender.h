// gpu_link/link_sender.h - the sending end of a link: encoders and the link work at the same time
// on the chunks that gpu_link/link_scheduler.h picks.
#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "gpu_link/link_engine.h"
#include "gpu_link/link_scheduler.h"
#include "gpu_link/link_worker.h"
#include "gpu_link/staging_ring.h"
#include "wire/message_rules.h"
#include "wire/transfer_state.h"

namespace snug::gpu_link {

struct LinkSendMessage {
  LinkOffer offer;
  std::shared_ptr<LinkTensor> tensor;
  std::shared_ptr<Transfer::State> state = std::make_shared<Transfer::State>();
  std::uint64_t front = 0, back = 0;  // bytes between them are not claimed yet
  int num_pending = 0;                // chunks that were claimed and have not arrived
  bool accepted = false, has_frames = false;
  bool may_code = false;   // if the engine can
  bool is_choice = false;  // raw or coded: the engine could encode from the start
  LinkClock::time_point accepted_at{};
  std::uint64_t rest() const { return back - front; }
};

class LinkSender : public MessageWorker<LinkSendMessage> {
 public:
  LinkSender(LinkDirection& direction, std::unique_ptr<SendEngine> engine,
             std::size_t staging_bytes, std::size_t max_chunk_bytes, LinkOptions options);
  ~LinkSender() override { stop(); }

  Transfer send(std::uint64_t tag, std::shared_ptr<LinkTensor> tensor);
  // goodput: the link's rate under kRaw, and that rate over the ratio of each codec.
  Stats stats() const;

 private:
  struct Piece {
    MessagePtr message;
    LinkSpan span;
    Mode mode = Mode::kRaw;
    int frame = -1;  // -1: raw
    std::size_t payload_bytes = 0;
    LinkClock::time_point since{};
  };
  enum class Stage { kIdle, kEncoding, kReady, kFlying };
  struct Frame {
    Stage stage = Stage::kIdle;
    Piece piece;
    LinkClock::time_point last_asked{};  // last poll that found it not ready
  };
  struct Flying {
    Piece piece;
    std::size_t place = 0;
    LinkClock::time_point due{};  // expected arrival
  };

  Status step(bool& moved) override;
  bool is_busy() const override;
  void finish_all(const Status& status) noexcept override;

  Status offer_messages(bool& moved);
  Status take_answers(bool& moved);
  Status free_staging(bool& moved);
  Status land_copy(bool& moved);
  Status collect_frames(bool& moved);
  Status feed_link(bool& moved);
  Status feed_encoder(bool& moved);
  Frame& frame_at(int idx) { return frames_[static_cast<std::size_t>(idx)]; }
  int num_frames(Stage stage) const {
    return static_cast<int>(std::ranges::count(frames_, stage, &Frame::stage));
  }
  bool next_piece(Piece& piece);
  bool fill_gap(Piece& piece);
  LinkClock::duration on_link(double num_bytes) const;
  double link_busy(LinkClock::time_point now) const;
  std::vector<LinkFrame> open_frames(LinkClock::time_point now) const;
  void choose_way(LinkSendMessage& message);
  void learn_from(const LinkSendMessage& message);

  const std::unique_ptr<SendEngine> engine_;
  LinkScheduler scheduler_;  // written by the thread alone, with mutex_ held
  StagingRing staging_;
  std::vector<Frame> frames_;
  std::deque<int> ready_;          // frames for the link, oldest first
  std::deque<Piece> claimed_raw_;  // encoded in vain
  std::deque<Flying> flying_;
  LinkClock::time_point link_free_{};       // when the last copy ended
  LinkClock::time_point last_asked_{};      // last poll that found the oldest copy not ended
  std::size_t num_accepted_ = 0;            // messages under way
  const LinkSendMessage* alone_ = nullptr;  // had the link for itself since it was accepted

  std::uint64_t next_number_ = 1;                 // guarded by mutex_
  std::size_t num_open_ = 0;                      // guarded by mutex_
  std::map<std::uint64_t, MessagePtr> messages_;  // offered and not done
  std::deque<MessagePtr> to_send_;                // accepted, with bytes that are not claimed
  std::uint64_t num_offers_ = 0, num_answers_ = 0, num_chunks_ = 0, num_freed_ = 0;
};

}  // namespace snug::gpu_link
