// The side that dials: the control channel first, so that a refusal costs one connection, then the
// lanes, several at a time.
#include <algorithm>
#include <atomic>
#include <future>
#include <new>
#include <system_error>

#include "wire/connection_core.h"
#include "wire/handshake.h"

namespace snug::wire {
namespace {

// Not more: a listener greets few strangers at a time, and many may dial at the same moment.
constexpr int kLanesAtOnce = 4;
constexpr std::chrono::milliseconds kShortestPause{20}, kLongestPause{160};
constexpr Status kStopped{Code::kIo, "stopped by the caller"};

struct Dialler {
  const std::string& address;
  const Options& options;
  const Door& door;
  Deadline deadline;

  // A listener knows nobody before the first bytes have come: where many dial at once, it may send
  // away some who may come in.
  Result<ChannelPtr> open(const ChannelId& id, const KeepGoing& keep_going) const {
    for (auto pause = kShortestPause;; pause *= 2) {
      auto channel = try_once(id, keep_going);
      const char* const why = channel.status().what;
      if ((why != kSentAwayText && why != kTlsText) || pause > kLongestPause) return channel;
      std::this_thread::sleep_for(pause);
      if (keep_going && !keep_going()) return kStopped;
    }
  }

 private:
  Result<ChannelPtr> try_once(const ChannelId& id, const KeepGoing& keep_going) const {
    auto channel = dial(address, door, deadline, keep_going);
    if (!channel) return channel;
    if (Status s = (*channel)->open(deadline, keep_going); !s.ok()) return s;
    if (Status s = greet(**channel, id, deadline, keep_going); !s.ok())
      return options.insecure && s.code == Code::kPeer ? Status{Code::kPeer, kTlsText} : s;
    return channel;
  }
};

// Threads do the waiting, and this one asks `keep_going`, which need not be safe to call from
// several.
class SomeLanes {
 public:
  explicit SomeLanes(const Dialler& dialler) : dialler_(dialler) {}
  ~SomeLanes() { stop_ = true; }  // the futures then wait for their threads

  Status open(ChannelId id, int num_lanes, const KeepGoing& keep_going,
              std::vector<ChannelPtr>& channels) {
    lanes_.reserve(static_cast<std::size_t>(num_lanes));  // may throw, while there is none to stop
    for (int i = 0; i < num_lanes; ++i, ++id.channel_idx)
      lanes_.push_back(std::async(
          std::launch::async, [this, id] { return dialler_.open(id, [this] { return !stop_; }); }));
    for (auto& lane : lanes_) {
      while (lane.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready)
        if (keep_going && !keep_going()) return kStopped;
      auto channel = lane.get();
      if (!channel) return channel.status();
      channels.push_back(std::move(*channel));
    }
    return {};
  }

 private:
  const Dialler& dialler_;
  std::atomic<bool> stop_{false};
  std::vector<std::future<Result<ChannelPtr>>> lanes_;
};

}  // namespace

Result<Connection> connect(const std::string& address, const Options& options,
                           const std::function<bool()>& keep_going) noexcept try {
  if (Status s = check_options(options); !s.ok()) return s;
  const Deadline deadline = net::after(options.timeout);
  const auto door = door_of(Side::kDials, address, options);
  if (!door) return door.status();
  const int usual_lanes = std::thread::hardware_concurrency() >= 8 ? 4 : 2;
  const int num_lanes = options.num_lanes > 0 ? options.num_lanes : usual_lanes;
  ChannelId id{random_session(), 0, static_cast<std::uint16_t>(num_lanes)};
  const Dialler dialler{address, options, *door, deadline};
  auto control = dialler.open(id, keep_going);
  if (!control) return control.status();
  std::vector<ChannelPtr> channels;
  channels.push_back(std::move(*control));
  for (int num_left = num_lanes; num_left > 0; num_left -= kLanesAtOnce) {
    id.channel_idx = static_cast<std::uint16_t>(channels.size());
    const int some = std::min(num_left, kLanesAtOnce);
    if (Status s = SomeLanes(dialler).open(id, some, keep_going, channels); !s.ok()) return s;
  }
  return make_connection(options, std::move(channels));
} catch (const std::bad_alloc&) {
  return kOutOfMemory;
} catch (const std::system_error&) {  // of random_session, or of a thread
  return Status{Code::kIo, "no random bits or threads from the kernel"};
}

}  // namespace snug::wire
