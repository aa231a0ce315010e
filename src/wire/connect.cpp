// The side that dials: one channel after the other, each greeted before the next.
#include <new>
#include <system_error>

#include "wire/connection_core.h"
#include "wire/handshake.h"

namespace snug::wire {
namespace {

constexpr Status kRefused{
    Code::kPeer, "the other side encrypts, or is no Snug; --insecure is for both sides or neither"};

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
  std::vector<ChannelPtr> channels;
  for (; id.channel_idx <= num_lanes; ++id.channel_idx) {
    auto channel = dial(address, *door, deadline, keep_going);
    if (!channel) return channel.status();
    if (Status s = (*channel)->open(deadline, keep_going); !s.ok()) return s;
    if (Status s = greet(**channel, id, deadline, keep_going); !s.ok())
      return options.insecure && s.code == Code::kPeer ? kRefused : s;
    channels.push_back(std::move(*channel));
  }
  return make_connection(options, std::move(channels));
} catch (const std::bad_alloc&) {
  return kOutOfMemory;
} catch (const std::system_error&) {  // of random_session
  return Status{Code::kIo, "no random bits from the kernel"};
}

}  // namespace snug::wire
