// The accept loop of snug recv and of the server of versions.
#include <atomic>
#include <list>
#include <thread>

#include "snug/transfer.h"
#include "transfer/dialogue.h"
#include "wire/connection_core.h"

namespace snug {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxPeers = 256;
constexpr std::size_t kMaxLanesInAll = 512;  // each has a thread

struct Peer {
  std::size_t num_lanes = 0;
  std::atomic<bool> done{false};
  std::jthread thread;
};

bool has_room(const std::list<Peer>& peers, const wire::Connection& next) {
  std::size_t num_lanes = next.core()->num_lanes();
  for (const Peer& peer : peers) num_lanes += peer.num_lanes;
  return peers.size() < kMaxPeers && num_lanes <= kMaxLanesInAll;
}

// Says that connections were refused. A port scan must not fill the log.
class Refusals {
 public:
  template <class OnError>
  void report(const wire::Listener& listener, const OnError& on_error) {
    const auto now = std::chrono::steady_clock::now();
    if (now < quiet_until_) return;
    const wire::Listener::Refused refused = listener.refused();
    const auto count = refused.count - reported_.count;
    const auto wrong = refused.wrong_token - reported_.wrong_token;
    if (count == 0) return;
    if (wrong > 0)
      on_error({{Code::kPeer, "refused: it has another token, or is another user without one"},
                refused.peer,
                {},
                wrong > 1 ? std::to_string(wrong) + " times" : ""});
    if (count > wrong)
      on_error({{Code::kPeer, "connections ended before they proved to be Snug"},
                {},
                {},
                std::to_string(count - wrong)});
    reported_ = refused;
    quiet_until_ = now + 10s;
  }

 private:
  wire::Listener::Refused reported_;
  std::chrono::steady_clock::time_point quiet_until_{};
};

}  // namespace

void serve_peers(wire::Listener& listener,
                 const std::function<StoreStatus(wire::Connection&)>& serve,
                 const std::function<void(const StoreStatus&)>& on_error,
                 const std::function<bool()>& keep_going) noexcept {
  std::list<Peer> peers;
  Refusals refusals;
  while (keep_going()) {
    auto connection = listener.accept(50ms);
    std::erase_if(peers, [](const Peer& p) { return p.done || !p.thread.joinable(); });
    try {
      if (connection && !has_room(peers, *connection)) {
        transfer::send_error(*connection, {{Code::kTimeout, "too many peers at once"}});
      } else if (connection) {
        connection->core()->limit_notes(transfer::kMaxFileNoteBytes);
        Peer& peer = peers.emplace_back();
        peer.num_lanes = connection->core()->num_lanes();
        peer.thread = std::jthread([&, connection = std::move(*connection)]() mutable {
          const std::string name = connection.peer_name();  // unknown once it is closed
          StoreStatus s = serve(connection);
          s.file = s.file.empty() ? name : name + ": " + s.file;
          if (!s.ok()) on_error(s);
          peer.done = true;
        });
      }
      refusals.report(listener, on_error);
    } catch (const std::exception&) {  // this peer will come back; the others must not suffer
      on_error({{Code::kIo, "cannot start a thread for a peer"}, {}, {}, {}});
    }
  }
}

}  // namespace snug
