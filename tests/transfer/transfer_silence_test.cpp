// Peers that are alive and send nothing: the other side gives up, soon and with a reason.
#include <atomic>
#include <filesystem>
#include <future>

#include "snug/transfer.h"
#include "store/store_files.h"
#include "transfer/dialogue.h"
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

// ---- receivers and servers that only ping ------------------------------------

wire::Options pinging() {
  wire::Options options;
  options.timeout = 1s;  // of which four pings come
  return options;
}

// Plays `script` to one peer, and then stays connected without a word.
class Liar {
 public:
  explicit Liar(std::function<void(wire::Connection&)> script)
      : listener_(std::move(*wire::Listener::open("127.0.0.1:0", pinging()))),
        thread_([this, script = std::move(script)] {
          auto connection = listener_.accept(20s);
          if (!connection) return;
          script(*connection);
          while (!stop_ && connection->status().ok()) std::this_thread::sleep_for(5ms);
        }) {}
  ~Liar() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return listener_.address(); }

 private:
  wire::Listener listener_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

std::string take_text(wire::Connection& connection, std::uint64_t tag) {
  struct TextSink : wire::Sink {
    Status begin(std::span<const wire::Extent>, std::uint64_t num_bytes) override {
      text.resize(num_bytes);
      return {};
    }
    std::span<std::byte> view(std::uint64_t offset, std::size_t num_bytes) override {
      return std::as_writable_bytes(std::span(text)).subspan(offset, num_bytes);
    }
    Status write(std::uint64_t, std::span<const std::byte>) override { return {}; }
    std::string text;
  };
  const auto sink = std::make_shared<TextSink>();
  EXPECT_TRUE(connection.recv(tag, sink).wait_for(20s).ok());
  return sink->text;
}

Code send_to(const std::function<void(wire::Connection&)>& script) {
  ScratchFolder from;
  write_file(from / "x", "some bytes");
  const Liar liar(script);
  TransferOptions options;
  options.wire = pinging();
  options.num_retries = 0;
  return send_path(from / "x", liar.address(), options).status().status.code;
}

TEST(TransferSilence, AReceiverWhoOnlyPingsAfterTheGreeting) {
  EXPECT_EQ(send_to([](wire::Connection&) {}), Code::kTimeout);
}

TEST(TransferSilence, AReceiverWhoOnlyPingsAfterTheList) {
  EXPECT_EQ(send_to([](wire::Connection& c) { take_text(c, 0); }), Code::kTimeout);
}

TEST(TransferSilence, AReceiverWhoOnlyPingsAfterOk) {
  EXPECT_EQ(send_to([](wire::Connection& c) {
              take_text(c, 0);
              EXPECT_TRUE(c.send_note("ok").ok());
            }),
            Code::kTimeout);
}

TEST(TransferSilence, AReceiverWhoOnlyPingsAfterCommit) {
  EXPECT_EQ(send_to([](wire::Connection& c) {
              take_text(c, 0);
              EXPECT_TRUE(c.send_note("ok").ok());
              EXPECT_EQ(take_text(c, 1), "some bytes");
              EXPECT_EQ(*c.recv_note(20s), "commit");
            }),
            Code::kTimeout);
}

TEST(TransferSilence, AReceiverWhoAgreesToAListThatItNeverRead) {
  EXPECT_EQ(send_to([](wire::Connection& c) { EXPECT_TRUE(c.send_note("ok").ok()); }), Code::kPeer);
}

Code follow_once(const std::function<void(wire::Connection&)>& script) {
  ScratchFolder to;
  const Liar liar([&](wire::Connection& c) {
    EXPECT_EQ(*c.recv_note(20s), "have - once");
    script(c);
  });
  SyncOptions options;
  options.wire = pinging();
  options.num_retries = 0;
  options.once = true;
  return follow_versions(liar.address(), to.path(), options).status.code;
}

TEST(TransferSilence, AServerWhoOnlyPings) {
  EXPECT_EQ(follow_once([](wire::Connection&) {}), Code::kTimeout);
  EXPECT_EQ(follow_once([](wire::Connection& c) { (void)c.send_note("newer 1000"); }),
            Code::kTimeout);
}

// One that wants every version waits for the next one for ever, but not for what is announced.
TEST(TransferSilence, AServerWhoAnnouncesAndOnlyPings) {
  ScratchFolder to;
  const Liar liar([&](wire::Connection& c) {
    EXPECT_EQ(*c.recv_note(20s), "have -");
    std::this_thread::sleep_for(2s);  // longer than the timeout
    (void)c.send_note("newer 1000");
  });
  std::vector<Code> errors;
  SyncOptions options;
  options.wire = pinging();
  options.on_error = [&](const StoreStatus& status) { errors.push_back(status.status.code); };
  options.keep_going = [&] { return errors.empty(); };
  EXPECT_TRUE(follow_versions(liar.address(), to.path(), options).ok());
  EXPECT_EQ(errors, std::vector{Code::kTimeout});
}

TEST(TransferSilence, APatientRuleForLargeFiles) {
  EXPECT_EQ(transfer::patience_for(30s, 0), 30s);
  EXPECT_EQ(transfer::patience_for(30s, 100'000'000'000), 5030s);
  EXPECT_GT(net::after(transfer::patience_for(24h * 365, ~std::uint64_t{0})), net::after(24h));
}

// A follower that gets a patch and does not fetch it, and one that fetched and never asks again.
TEST(TransferSilence, AFollowerWhoNeverFetchesIsSentAway) {
  ScratchFolder served;
  write_file(served / "v1", "a version");
  auto listener = wire::Listener::open("127.0.0.1:0", pinging());
  ASSERT_TRUE(listener.ok());
  std::atomic<bool> reported{false};
  SyncOptions options;
  options.wire = pinging();
  options.on_error = [&](const StoreStatus& status) {
    EXPECT_EQ(status.status.code, Code::kTimeout);
    reported = true;
  };
  options.keep_going = [&] { return !reported; };
  auto follower = std::async(std::launch::async, [&] {
    auto connection = wire::connect(listener->address(), pinging());
    EXPECT_TRUE(connection->send_note("have -").ok());
    EXPECT_EQ(connection->recv_note(20s)->substr(0, 6), "newer ");
    EXPECT_EQ(connection->recv_note(20s)->substr(0, 5), "full ");
    return connection;
  });
  EXPECT_TRUE(serve_versions(*listener, served.path(), options).ok());
  EXPECT_TRUE(follower.get().ok());
}

TEST(TransferSilence, AnEmptyServerSaysSoToThoseWhoAskOnce) {
  ScratchFolder served, to;
  auto listener = wire::Listener::open("127.0.0.1:0", pinging());
  ASSERT_TRUE(listener.ok());
  std::atomic<bool> stop{false};
  SyncOptions serving;
  serving.wire = pinging();
  serving.keep_going = [&] { return !stop; };
  auto server = std::async(std::launch::async,
                           [&] { return serve_versions(*listener, served.path(), serving); });
  SyncOptions options;
  options.wire = pinging();
  options.num_retries = 0;
  options.once = true;
  const StoreStatus s = follow_versions(listener->address(), to.path(), options);
  EXPECT_EQ(s.status.code, Code::kNotFound) << to_string(s);
  stop = true;
  EXPECT_TRUE(server.get().ok());
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
