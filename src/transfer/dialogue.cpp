#include "transfer/dialogue.h"

#include <algorithm>
#include <charconv>
#include <thread>

namespace snug::transfer {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kError = "error ";
constexpr char kPeerSays[] = "the other side says";

// "error CODE TEXT" as the other side's reason.
StoreStatus parse_error(std::string_view text) {
  text.remove_prefix(kError.size());
  int code = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  const bool known = error == std::errc{} && code > 0 && code < 64;
  return {{known ? static_cast<Code>(code) : Code::kPeer, kPeerSays},
          {},
          {},
          std::string(text.substr(text.empty() ? 0 : 1, 1000))};
}

}  // namespace

bool came_from_peer(const StoreStatus& status) noexcept { return status.status.what == kPeerSays; }

bool worth_retrying(Code code) noexcept {
  return code == Code::kPeer || code == Code::kTimeout || code == Code::kCorrupt;
}

void back_off(int exponent, const KeepGoing& keep_going) {
  const auto until = Clock::now() + 250ms * (1 << std::min(exponent, 4));
  while (Clock::now() < until && keep_going()) std::this_thread::sleep_for(50ms);
}

StoreStatus interrupted() { return {{Code::kIo, "stopped by the caller"}}; }

StoreStatus says_nothing() {
  return {{Code::kTimeout, "the other side is alive, but sends nothing"}};
}

std::chrono::milliseconds patience_for(std::chrono::milliseconds timeout, std::uint64_t num_bytes) {
  constexpr std::uint64_t kBytesPerMillisecond = 20'000;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 50;  // deadlines are nanoseconds in 64 bits
  return timeout + std::chrono::milliseconds(std::min(num_bytes, kMost) / kBytesPerMillisecond);
}

std::optional<Answer> next_note(Connection& connection, std::chrono::milliseconds patience) {
  auto note = connection.recv_note(patience);
  if (!note) return std::nullopt;
  if (note->starts_with(kError)) return Answer{{}, parse_error(*note), true};
  return Answer{std::move(*note)};
}

Answer wait_for_note(Connection& connection, const KeepGoing& keep_going, Deadline deadline) {
  for (;;) {
    const Status before = connection.status();  // what was said before the end still counts
    if (auto answer = next_note(connection, 100ms)) return std::move(*answer);
    if (!before.ok()) return {{}, {before}};
    if (keep_going && !keep_going()) return {{}, interrupted(), true};
    if (Clock::now() >= deadline) return {{}, says_nothing()};
  }
}

Answer last_words(Connection& connection, const Status& status) {
  if (!connection.status().ok())
    if (Answer answer = wait_for_note(connection, {}); answer.refused) return answer;
  return {{}, {status}};
}

void send_error(Connection& connection, const StoreStatus& status) {
  (void)connection.send_note(std::string(kError) +
                             std::to_string(static_cast<int>(status.status.code)) + " " +
                             to_string(status).substr(0, 1000));
}

}  // namespace snug::transfer
