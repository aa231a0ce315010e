// A receiver that ends between the last rename and its last word: the sender asks again,
// and hears of its success only if what lies there is what it sends.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "snug/transfer.h"
#include "store/store_files.h"
#include "transfer/dialogue.h"
#include "wire/faulty_proxy.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

TransferOptions quick() {
  TransferOptions options;
  options.wire.timeout = 10'000ms;
  options.wire.num_lanes = 1;
  return options;
}

wire::Connection next_sender(wire::Listener& listener) {
  for (int i = 0; i < 200; ++i)
    if (auto connection = listener.accept(100ms)) return std::move(*connection);
  ADD_FAILURE() << "nobody comes";
  return {};
}

// Sends `path` to a receiver that dies when it has given it its name; `meanwhile` is
// called before the next one begins.
StoreResult<TransferReport> send_twice(const std::string& path, const std::string& folder,
                                       const std::function<void(const std::string&)>& meanwhile) {
  const TransferOptions options = quick();
  auto listener = std::move(*wire::Listener::open("127.0.0.1:0", options.wire));
  StoreResult<TransferReport> sent = StoreStatus{{Code::kInternal, "did not run"}, {}, {}, {}};
  std::thread sender([&] { sent = send_path(path, listener.address(), options); });
  {
    auto first = next_sender(listener);
    transfer::FileManifest manifest;
    transfer::ReceiveRules rules;
    rules.check = [&](const std::string& part) -> StoreStatus {
      const std::string final = folder + "/" + fs::path(path).filename().string();
      fs::copy(part, final, fs::copy_options::recursive);
      meanwhile(final);
      first.close();
      return {{Code::kPeer, "this receiver is dead"}, {}, {}, {}};
    };
    std::string kept;
    EXPECT_FALSE(transfer::receive_files(first, folder, rules, manifest, kept).ok());
  }
  {
    auto second = next_sender(listener);
    (void)receive_path(second, folder, options);
    sender.join();
  }
  return sent;
}

TEST(WireSendAgain, AFileThatIsThereCountsAsSent) {
  const ScratchFolder scratch;
  const std::string in = scratch / "in";
  fs::create_directory(in);
  write_file(scratch / "model.bin", std::string(300'000, 'm'));
  const auto sent = send_twice(scratch / "model.bin", in, [](const std::string&) {});
  ASSERT_TRUE(sent.ok()) << to_string(sent.status());
  EXPECT_EQ(sent->num_attempts, 2);
}

TEST(WireSendAgain, AFolderThatIsThereCountsAsSent) {
  const ScratchFolder scratch;
  const std::string in = scratch / "in", model = scratch / "model";
  fs::create_directory(in);
  fs::create_directories(model + "/sub");
  write_file(model + "/config.json", "{}");
  write_file(model + "/sub/weights", std::string(300'000, 'w'));
  const auto sent = send_twice(model, in, [](const std::string&) {});
  ASSERT_TRUE(sent.ok()) << to_string(sent.status());
}

TEST(WireSendAgain, SomethingElseOfThatNameAndSizeDoesNot) {
  const ScratchFolder scratch;
  const std::string in = scratch / "in";
  fs::create_directory(in);
  write_file(scratch / "model.bin", std::string(300'000, 'm'));
  const auto sent = send_twice(scratch / "model.bin", in, [](const std::string& final) {
    write_file(final, std::string(300'000, 'x'));
  });
  EXPECT_EQ(sent.status().status.code, Code::kExists);
}

// A listener that is flooded may send a sender away before it has said a word, also as often as
// wire::connect tries.
TEST(WireSendAgain, AfterBeingSentAway) {
  const ScratchFolder dir;
  fs::create_directory(dir / "in");
  write_file(dir / "file", std::string(100'000, 'x'));
  TransferOptions options = quick();
  auto listener = std::move(*wire::Listener::open("127.0.0.1:0", options.wire));
  FaultyProxy proxy(listener.address(), {.kind = Fault::kCut, .num_connections = 5});
  StoreResult<TransferReport> sent = StoreStatus{{Code::kInternal, "did not run"}, {}, {}, {}};
  std::thread sender([&] { sent = send_path(dir / "file", proxy.address(), options); });
  auto connection = next_sender(listener);
  EXPECT_TRUE(receive_path(connection, dir / "in", options).ok());
  sender.join();
  ASSERT_TRUE(sent.ok()) << to_string(sent.status());
  EXPECT_TRUE(proxy.has_struck());
  EXPECT_EQ(sent->num_attempts, 2);
  options.num_retries = 0;
  FaultyProxy again(listener.address(), {.kind = Fault::kCut, .num_connections = 5});
  EXPECT_EQ(send_path(dir / "file", again.address(), options).status().status.code, Code::kPeer);
}

}  // namespace
}  // namespace snug::test
