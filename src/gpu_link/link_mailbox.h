// gpu_link/link_mailbox.h - the shared memory through which the two ends of a link talk: which
// messages are offered and accepted, which chunks lie in the staging memory.
//
// One direction has one sending and one receiving process. The other side can write anything here
// at any time: entries are copied out before they are read, and positions are checked at every use.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "net/local_peer.h"
#include "snug/wire.h"

namespace snug::gpu_link {

inline constexpr Status kLinkBroken{Code::kPeer, "the peer broke the link's shared memory"};

// Sender: a message.
struct LinkOffer {
  std::uint64_t number = 0;  // upwards from 1
  std::uint64_t tag = 0;
  std::uint64_t num_bytes = 0;
  std::uint64_t dtype = 0;
};

// Receiver: about a message.
struct LinkAnswer {
  std::uint64_t number = 0;
  std::uint64_t is_done = 0;  // 0: send it; 1: every byte is in its place
};

// Sender: a chunk that lies in the staging memory.
struct LinkChunk {
  std::uint64_t number = 0;  // of the message
  std::uint64_t offset = 0;  // in the message
  std::uint64_t num_bytes = 0;
  std::uint64_t place = 0;  // in the staging memory
  std::uint64_t payload_bytes = 0;
  std::uint64_t mode = 0;      // kRaw: the bytes themselves, else a frame
  std::uint64_t checksum = 0;  // of the bytes themselves; a frame has its own
};

// A queue from one process to the other.
template <class T, std::uint64_t kSize>
struct SharedQueue {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  alignas(64) T entries[kSize];

  // The writing side keeps its own count; the shared one is for the reader.
  Result<bool> has_room(std::uint64_t own_written) const noexcept {
    const std::uint64_t used = own_written - read.load(std::memory_order_acquire);
    if (used > kSize) return kLinkBroken;
    return used < kSize;
  }
  Result<bool> try_put(std::uint64_t& own_written, const T& entry) noexcept {
    const auto room = has_room(own_written);
    if (room && *room) put(own_written, entry);
    return room;
  }
  void put(std::uint64_t& own_written, const T& entry) noexcept {
    entries[own_written % kSize] = entry;
    written.store(++own_written, std::memory_order_release);
  }
  // How many entries the reader, which is at own_read, has not seen.
  Result<std::uint64_t> num_new(std::uint64_t own_read) const noexcept {
    const std::uint64_t there = written.load(std::memory_order_acquire) - own_read;
    if (there > kSize) return kLinkBroken;
    return there;
  }
  T look(std::uint64_t own_read) const noexcept { return entries[own_read % kSize]; }
  // Everything before own_read may be overwritten.
  void let_go(std::uint64_t own_read) noexcept { read.store(own_read, std::memory_order_release); }
};

// Wakes a thread of another process. Ringing costs a system call only if it sleeps.
struct Bell {
  alignas(64) std::atomic<std::uint32_t> count;
  std::atomic<std::uint32_t> is_asleep;

  void ring() noexcept {
    count.fetch_add(1);
    if (is_asleep.load() != 0) net::futex_wake(count);
  }
  // Returns when it has been rung since `seen` was read, or after a moment.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds moment) noexcept {
    is_asleep.store(1);
    net::futex_wait(count, seen, moment);
    is_asleep.store(0);
  }
};

struct LinkDirection {
  SharedQueue<LinkOffer, 64> offers;    // by the sender
  SharedQueue<LinkAnswer, 64> answers;  // by the receiver
  SharedQueue<LinkChunk, 128> chunks;   // by the sender; read: its staging memory is free
  // By the receiver: how long the last chunk of each mode took from here to its place.
  std::atomic<std::uint64_t> place_nanoseconds[wire::kNumModes];
  std::atomic<std::uint32_t> failure;      // by either: a snug::Code, plus 1
  std::atomic<std::uint32_t> is_attached;  // by the sender: it may write to the staging memory
  Bell sender_bell, receiver_bell;
};

struct LinkMemory {
  LinkDirection from_dialler, from_listener;
};

}  // namespace snug::gpu_link
