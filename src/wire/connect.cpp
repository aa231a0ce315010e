// The side that dials: one channel after the other, each greeted before the next.
#include <new>

#include "wire/connection_core.h"
#include "wire/handshake.h"

namespace snug::wire {

Result<Connection> connect(const std::string& address, const Options& options,
                           const std::function<bool()>& keep_going) noexcept try {
  if (Status s = check_options(options); !s.ok()) return s;
  const Deadline deadline = net::after(options.timeout);
  const int usual_lanes = std::thread::hardware_concurrency() >= 8 ? 4 : 2;
  const int num_lanes = options.num_lanes > 0 ? options.num_lanes : usual_lanes;
  ChannelId id{random_session(), 0, static_cast<std::uint16_t>(num_lanes)};
  std::vector<ChannelPtr> channels;
  for (; id.channel_idx <= num_lanes; ++id.channel_idx) {
    auto channel = dial(address, deadline, keep_going);
    if (!channel) return channel.status();
    if (Status s = greet(**channel, id, options.token, deadline, keep_going); !s.ok()) return s;
    channels.push_back(std::move(*channel));
  }
  return make_connection(options, std::move(channels));
} catch (const std::bad_alloc&) {
  return kOutOfMemory;
}

}  // namespace snug::wire
