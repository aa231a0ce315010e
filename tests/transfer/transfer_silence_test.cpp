// Peers that are alive and send nothing: the other side gives up, soon and with a reason.
#include <atomic>
#include <filesystem>
#include <future>

#include "snug/transfer.h"
#include "store/store_files.h"
#include "wire/wire_pairs.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;

// The connections themselves would wait for much longer.
TransferOptions impatient() {
  TransferOptions options;
  options.wire.timeout = 300ms;
  return options;
}

TEST(TransferSilence, ASenderWhoSaysNothingIsSentAway) {
  ScratchFolder to;
  Pair pair = make_pair();
  const auto report = receive_path(pair.b, to.path(), impatient());
  EXPECT_EQ(report.status().status.code, Code::kTimeout);
  EXPECT_TRUE(std::filesystem::is_empty(to.path()));
}

TEST(TransferSilence, ASenderWhoAnnouncesAndSendsNothingIsSentAway) {
  ScratchFolder to;
  Pair pair = make_pair();
  const std::string manifest = R"({"name":"x","folder":0,"files":[["x",1000,420]]})";
  const std::span<const std::byte> bytes[] = {std::as_bytes(std::span(manifest))};
  const auto announced = pair.a.send(0, DType::kBytes, bytes);
  const auto report = receive_path(pair.b, to.path(), impatient());
  EXPECT_EQ(report.status().status.code, Code::kTimeout);
  EXPECT_FALSE(std::filesystem::exists(to / "x"));
  EXPECT_EQ(*pair.a.recv_note(20s), "ok");
  (void)announced.wait_for(20s);
}

TEST(TransferSilence, AFollowerWhoSaysNothingIsSentAway) {
  ScratchFolder served;
  auto listener = wire::Listener::open("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  std::atomic<int> num_errors{0};
  SyncOptions options;
  options.wire.timeout = 300ms;
  options.on_error = [&](const StoreStatus& status) {
    EXPECT_EQ(status.status.code, Code::kTimeout);
    ++num_errors;
  };
  options.keep_going = [&] { return num_errors == 0; };
  auto silent = std::async(std::launch::async, [&] { return wire::connect(listener->address()); });
  EXPECT_TRUE(serve_versions(*listener, served.path(), options).ok());
  EXPECT_TRUE(silent.get().ok());
}

}  // namespace
}  // namespace snug::test
