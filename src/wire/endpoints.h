// wire/endpoints.h - where peers meet: addresses of every transport, dialling
// and waiting for calls.
#pragma once
#include <memory>
#include <string>

#include "wire/channel.h"

namespace snug::wire {

// Accepts channels, one after the other. Never waits for what a stranger may not send:
// that is what Channel::open is for.
class ChannelListener {
 public:
  virtual ~ChannelListener() = default;
  virtual Result<ChannelPtr> accept(Deadline deadline) = 0;
  virtual std::string address() const = 0;
};

// Shared memory on one host, by name.
Result<ChannelPtr> dial_shm(const std::string& name, Deadline deadline);
Result<std::unique_ptr<ChannelListener>> listen_shm(const std::string& name);

// Whether only this host can reach the address.
Result<bool> is_local(const std::string& address);
Result<ChannelPtr> dial(const std::string& address, Deadline deadline,
                        const KeepGoing& keep_going = {});
Result<std::unique_ptr<ChannelListener>> listen(const std::string& address);

}  // namespace snug::wire
