#include "transfer/dialogue.h"

#include <charconv>

namespace snug::transfer {
namespace {

constexpr std::chrono::milliseconds kLook{100};
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

StoreStatus interrupted() { return {{Code::kIo, "stopped by the caller"}, {}, {}, {}}; }

StoreStatus says_nothing() {
  return {{Code::kTimeout, "the other side lives, but sends nothing"}, {}, {}, {}};
}

std::optional<Answer> next_note(Connection& connection, std::chrono::milliseconds patience) {
  auto note = connection.recv_note(patience);
  if (!note) return std::nullopt;
  if (note->starts_with(kError)) return Answer{{}, parse_error(*note), true};
  return Answer{std::move(*note), {}, false};
}

Answer wait_for_note(Connection& connection, const KeepGoing& keep_going, Deadline deadline) {
  for (;;) {
    const Status before = connection.status();  // what was said before the end still counts
    if (auto answer = next_note(connection, kLook)) return std::move(*answer);
    if (!before.ok()) return {{}, {before, {}, {}, {}}, false};
    if (keep_going && !keep_going()) return {{}, interrupted(), true};
    if (std::chrono::steady_clock::now() >= deadline) return {{}, says_nothing(), false};
  }
}

Answer last_words(Connection& connection, const Status& status) {
  if (!connection.status().ok())
    if (Answer answer = wait_for_note(connection, {}); answer.refused) return answer;
  return {{}, {status, {}, {}, {}}, false};
}

void send_error(Connection& connection, const StoreStatus& status) {
  (void)connection.send_note(std::string(kError) +
                             std::to_string(static_cast<int>(status.status.code)) + " " +
                             to_string(status).substr(0, 1000));
}

void add_stats(Stats& sum, const Stats& more) {
  sum.raw_bytes += more.raw_bytes;
  sum.wire_bytes += more.wire_bytes;
  sum.known_bytes += more.known_bytes;
  sum.encode_seconds += more.encode_seconds;
  sum.send_wait_seconds += more.send_wait_seconds;
  for (int i = 0; i < wire::kNumModes; ++i) {
    sum.num_chunks[i] += more.num_chunks[i];
    sum.goodput[i] = more.goodput[i];
  }
}

}  // namespace snug::transfer
