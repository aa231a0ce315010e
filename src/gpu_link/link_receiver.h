// gpu_link/link_receiver.h - the receiving end of a link: matches offers with receives, moves
// chunks from the staging memory to their places and confirms messages that are complete.
// Everything that the peer wrote is checked against the message.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "gpu_link/link_engine.h"
#include "gpu_link/link_worker.h"
#include "wire/message_rules.h"
#include "wire/transfer_state.h"

namespace snug::gpu_link {

struct LinkReceiveMessage {
  std::uint64_t tag = 0, num_left = 0;
  std::shared_ptr<LinkTensor> tensor;
  std::shared_ptr<Transfer::State> state = std::make_shared<Transfer::State>();
  std::vector<bool> arrived;  // by grain
};

class LinkReceiver : public MessageWorker<LinkReceiveMessage> {
 public:
  LinkReceiver(LinkDirection& direction, std::unique_ptr<ReceiveEngine> engine,
               std::size_t staging_bytes, std::size_t max_chunk_bytes, LinkOptions options);
  ~LinkReceiver() override { stop(); }

  Transfer recv(std::uint64_t tag, std::shared_ptr<LinkTensor> tensor);
  Stats stats() const;

 private:
  struct Placing {
    LinkChunk chunk;
    MessagePtr message;
    int placer = -1;
    bool done = false;
    LinkClock::time_point since{};
  };

  Status step(bool& moved) override;
  bool is_busy() const override { return !messages_.empty(); }
  void finish_all(const Status& status) noexcept override;

  Status match_receives(bool& moved);
  Status take_offers(bool& moved);
  Status match(const LinkOffer& offer, MessagePtr message);
  Status send_answers(bool& moved);
  Status take_chunk(bool& moved);
  Status check_chunk(const LinkChunk& chunk, MessagePtr& message);
  Status collect_placed(bool& moved);
  void note_time(const Placing& placing);

  const std::unique_ptr<ReceiveEngine> engine_;
  const std::size_t staging_bytes_, max_chunk_bytes_;
  std::deque<int> idle_placers_;
  std::map<std::uint64_t, std::deque<MessagePtr>> posted_;  // by tag
  std::map<std::uint64_t, std::deque<LinkOffer>> offers_;   // by tag, no receive posted
  std::size_t num_waiting_offers_ = 0;
  std::map<std::uint64_t, MessagePtr> messages_;  // accepted, by number
  std::deque<LinkAnswer> answers_;                // for which there was no room yet
  std::deque<Placing> placing_;                   // in the order of the staging memory
  std::uint64_t num_offers_ = 0, num_answers_ = 0, num_taken_ = 0, num_freed_ = 0;
  std::uint64_t last_offer_ = 0;
};

}  // namespace snug::gpu_link
