// The side that listens: a session is complete when its control channel and all its lanes have come
// and proved that they know the token, in any order.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <new>
#include <system_error>
#include <thread>

#include "wire/connection_core.h"
#include "wire/handshake.h"

namespace snug::wire {
namespace {

// What strangers get before they have proved that they know the token. Those who have, and only
// have to say which session they belong to, have places of their own: however fast strangers
// connect, they do not send these away.
constexpr std::chrono::seconds kMaxGreeting{10};
constexpr std::size_t kMaxGreetings = 64;
constexpr std::size_t kMaxThreads = 256;
constexpr std::size_t kMaxSessions = 256;

}  // namespace

class Listener::Impl {
 public:
  Impl(ChannelListenerPtr listener, Options options)
      : listener_(std::move(listener)), options_(std::move(options)) {}

  ~Impl() {
    stopping_ = true;
    if (accepting_.joinable()) accepting_.join();
    {
      const std::lock_guard lock(mutex_);
      for (Greeting& greeting : greetings_)
        if (greeting.channel) greeting.channel->shut_down();
    }
    greetings_.clear();
  }

  void start() {
    accepting_ = std::thread([this] { run(); });
  }
  std::string address() const { return listener_->address(); }
  Refused refused() {
    const std::lock_guard lock(mutex_);
    return refused_;
  }

  Result<Connection> accept(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, patience, [this] { return !ready_.empty(); }))
      return Status{Code::kTimeout, "nobody has connected"};
    std::vector<ChannelPtr> channels = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    return make_connection(options_, std::move(channels));
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Session {
    std::vector<ChannelPtr> channels;
    Clock::time_point since = Clock::now();
  };
  struct Greeting {
    ChannelPtr channel;
    bool dropped = false, done = false;
    std::jthread thread;
  };

  void run() {
    while (!stopping_) {
      auto channel = listener_->accept(net::after(std::chrono::milliseconds(50)));
      {
        const std::lock_guard lock(mutex_);
        drop_old();
        if (channel) drop_oldest_strangers();
        if (channel && greetings_.size() < kMaxThreads) start_greeting(std::move(*channel));
      }
      if (!channel && channel.status().code != Code::kTimeout)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // out of descriptors
    }
  }

  // With mutex_ held. A greeting takes milliseconds, so the oldest of many only blocks a place. Its
  // thread ends when it notices.
  void drop_oldest_strangers() {
    const auto is_stranger = [](const Greeting& greeting) {
      return greeting.channel && !greeting.dropped && !greeting.channel->has_proved();
    };
    auto num_strangers = std::ranges::count_if(greetings_, is_stranger);
    for (Greeting& greeting : greetings_) {
      if (num_strangers < static_cast<std::ptrdiff_t>(kMaxGreetings)) return;
      if (!is_stranger(greeting)) continue;
      greeting.channel->shut_down();
      greeting.dropped = true;
      --num_strangers;
    }
  }

  // With mutex_ held. Every stranger is greeted on its own thread, so that a slow one does not
  // delay the others.
  void start_greeting(ChannelPtr channel) {
    Greeting& greeting = greetings_.emplace_back();
    greeting.channel = std::move(channel);
    try {
      greeting.thread = std::jthread([this, &greeting] { run_greeting(greeting); });
    } catch (const std::system_error&) {
      greetings_.pop_back();
    }
  }

  void run_greeting(Greeting& greeting) noexcept {
    try {
      greet_peer(greeting);
    } catch (const std::exception&) {  // no memory for this peer; the others stay
    }
    const std::lock_guard lock(mutex_);
    greeting.channel.reset();
    greeting.done = true;
  }

  void greet_peer(Greeting& greeting) {
    const Deadline deadline = net::after(std::min<Clock::duration>(options_.timeout, kMaxGreeting));
    std::string peer = greeting.channel->peer_name();  // unknown once it is gone
    const Status opened = greeting.channel->open(deadline, {});
    const auto id =
        opened.ok() ? receive_greeting(*greeting.channel, deadline) : Result<ChannelId>(opened);
    const std::lock_guard lock(mutex_);
    if (id) {
      add_channel(*id, std::move(greeting.channel));
    } else {
      ++refused_.count;
      if (opened.what == kAnotherTokenText) {
        ++refused_.wrong_token;
        refused_.peer = std::move(peer);
      }
    }
  }

  void add_channel(const ChannelId& id, ChannelPtr channel) {
    if (sessions_.size() >= kMaxSessions && !sessions_.contains(id.session)) drop_oldest_session();
    Session& session = sessions_[id.session];
    if (session.channels.empty()) session.channels.resize(id.num_lanes + std::size_t{1});
    if (session.channels.size() != id.num_lanes + std::size_t{1}) return;
    ChannelPtr& place = session.channels[id.channel_idx];
    if (place) return;
    place = std::move(channel);
    for (const ChannelPtr& other : session.channels)
      if (!other) return;
    ready_.push_back(std::move(session.channels));
    sessions_.erase(id.session);
    changed_.notify_all();
  }

  // The lanes of a session come within milliseconds, so the oldest only blocks a place.
  void drop_oldest_session() {
    sessions_.erase(
        std::ranges::min_element(sessions_, {}, [](const auto& s) { return s.second.since; }));
  }

  void drop_old() {
    std::erase_if(sessions_, [&](const auto& entry) {
      return Clock::now() - entry.second.since > options_.timeout;
    });
    greetings_.remove_if([](const Greeting& greeting) { return greeting.done; });
  }

  const ChannelListenerPtr listener_;
  const Options options_;
  std::thread accepting_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Greeting> greetings_;
  std::map<SessionId, Session> sessions_;
  std::deque<std::vector<ChannelPtr>> ready_;
  Refused refused_;
};

Listener::Listener() noexcept = default;
Listener::Listener(Listener&&) noexcept = default;
Listener& Listener::operator=(Listener&&) noexcept = default;
Listener::~Listener() = default;

Result<Listener> Listener::open(const std::string& address, const Options& options) noexcept try {
  if (Status s = check_options(options); !s.ok()) return s;
  const auto door = door_of(Side::kListens, address, options);
  if (!door) return door.status();
  auto channels = listen(address, *door);
  if (!channels) return channels.status();
  Listener listener;
  listener.impl_ = std::make_unique<Impl>(std::move(*channels), options);
  listener.impl_->start();
  return listener;
} catch (const std::exception&) {
  return Status{Code::kInternal, "out of memory or threads"};
}

std::string Listener::address() const noexcept { return impl_ ? impl_->address() : ""; }

Listener::Refused Listener::refused() const { return impl_ ? impl_->refused() : Refused{}; }

Result<Connection> Listener::accept(std::chrono::milliseconds patience) noexcept try {
  if (!impl_) return Status{Code::kUsage, "not listening"};
  return impl_->accept(patience);
} catch (const std::bad_alloc&) {
  return Status{Code::kInternal, "out of memory"};
}

}  // namespace snug::wire
