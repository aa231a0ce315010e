// Servers of versions that lie, babble and never end: the follower says what is wrong
// in bounded time, and nothing but a version that was verified ever has a version's name.
#include <atomic>
#include <filesystem>
#include <functional>

#include "net/socket.h"
#include "snug/store.h"
#include "snug/transfer.h"
#include "store/store_files.h"
#include "wire/wire_pairs.h"

namespace snug::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr char kHash[] = "0123456789abcdef0123456789abcdef";

SyncOptions once() {
  SyncOptions options;
  options.wire.timeout = 1500ms;
  options.once = true;
  options.num_retries = 0;
  return options;
}

// Plays `script` to everybody who connects.
class Server {
 public:
  explicit Server(std::function<void(wire::Connection&)> script) : script_(std::move(script)) {
    listener_ = std::move(*wire::Listener::open("127.0.0.1:0"));
    thread_ = std::thread([this] { run(); });
  }
  ~Server() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return listener_.address(); }

 private:
  void run() {
    while (!stop_) {
      auto connection = listener_.accept(20ms);
      if (!connection) continue;
      if (auto have = connection->recv_note(20s); have) script_(*connection);
      while (!stop_ && connection->status().ok()) std::this_thread::sleep_for(5ms);
    }
  }
  const std::function<void(wire::Connection&)> script_;
  wire::Listener listener_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

void send_text(wire::Connection& connection, std::uint64_t tag, const std::string& text) {
  const std::span<const std::byte> bytes[] = {std::as_bytes(std::span(text))};
  (void)connection.send(tag, DType::kBytes, bytes).wait_for(20s);
}

// Everything a follower may leave behind: nothing that has a name of its own.
std::vector<std::string> visible_names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string()[0] != '.') names.push_back(entry.path().filename());
  return names;
}

// Follows once; nothing may appear, neither in the folder nor beside it.
Code follow(const std::function<void(wire::Connection&)>& script) {
  const ScratchFolder around;
  const std::string folder = around / "folder";
  fs::create_directory(folder);
  const Server server(script);
  const StoreStatus s = follow_versions(server.address(), folder, once());
  EXPECT_TRUE(visible_names(folder).empty()) << visible_names(folder)[0];
  EXPECT_EQ(std::distance(fs::directory_iterator(around.path()), {}), 1);
  EXPECT_FALSE(s.status.what == nullptr || to_string(s).empty());
  return s.status.code;
}

TEST(HostileServer, AnnouncementsThatMakeNoSense) {
  const std::string hash = kHash;
  for (const std::string& note :
       {std::string("nonsense"), std::string(), std::string("full"), "full " + hash,
        "full " + hash + " 0 ", "full " + hash + " 0 ../up", "full " + hash + " 0 /etc/passwd",
        "full " + hash + " 0 a/b", "full " + hash + " 0 .hidden", "full " + hash + " 0 current",
        "full " + hash + " 0 ..", "full " + hash + " 0 x.snug-part", "full " + hash + " 0 a\nb",
        "full " + hash + " -1 x", "full " + hash + " 99999999999999999999 x",
        std::string("full XYZ 0 x"),
        "patch " + hash + " 10 x",  // there is no base
        "full " + hash + " 0 " + std::string(1'000'000, 'x'), std::string(1'000'000, '\0')})
    EXPECT_EQ(follow([&](wire::Connection& c) { (void)c.send_note(note); }), Code::kPeer)
        << note.substr(0, 80);
}

TEST(HostileServer, ManifestsThatMakeNoSense) {
  for (const char* manifest :
       {"", "{", "[]", R"({"name":"v"})", R"({"name":"other","folder":1,"files":[]})",
        R"({"name":"../v","folder":1,"files":[]})",
        R"({"name":"v","folder":1,"files":[["../../x",1,420]]})",
        R"({"name":"v","folder":1,"files":[["/tmp/x",1,420]]})",
        R"({"name":"v","folder":1,"files":[["a/../../x",1,420]]})",
        R"({"name":"v","folder":1,"files":[["a",1,420],["a",1,420]]})",
        R"({"name":"v","folder":1,"files":[["a\\b",1,420]]})",
        R"({"name":"v","folder":0,"files":[["x",1,420]]})",
        R"({"name":"v","folder":1,"files":[["a",18446744073709551615,420]]})",
        R"({"name":"v","folder":1,"files":[["a",-1,420]]})"})
    EXPECT_NE(follow([&](wire::Connection& c) {
                (void)c.send_note(std::string("full ") + kHash + " 0 v");
                send_text(c, 0, manifest);
              }),
              Code::kOk)
        << manifest;
}

TEST(HostileServer, SizesBeyondAllMeasure) {
  // A version that no disk holds.
  EXPECT_EQ(follow([](wire::Connection& c) {
              (void)c.send_note(std::string("full ") + kHash + " 0 v");
              send_text(c, 0, R"({"name":"v","folder":1,"files":[["a",900000000000000000,420]]})");
            }),
            Code::kIo);
  // A list of files that fills the memory.
  struct Endless : wire::Source {
    std::vector<wire::Extent> extents() const override { return {{DType::kBytes, 1ull << 40}}; }
    std::span<const std::byte> view(std::uint64_t, std::size_t) override { return {}; }
    Status read(std::uint64_t, std::span<std::byte>) override { return {}; }
  };
  EXPECT_EQ(follow([](wire::Connection& c) {
              (void)c.send_note(std::string("full ") + kHash + " 0 v");
              (void)c.send(0, std::make_shared<Endless>()).wait_for(20s);
            }),
            Code::kPeer);
  // More bytes than were announced.
  EXPECT_EQ(follow([](wire::Connection& c) {
              (void)c.send_note(std::string("full ") + kHash + " 0 v");
              send_text(c, 0, R"({"name":"v","folder":1,"files":[["a",10,420]]})");
              (void)c.recv_note(20s);
              (void)c.send(1, std::make_shared<Endless>()).wait_for(20s);
            }),
            Code::kPeer);
  // Words without end.
  EXPECT_NE(follow([](wire::Connection& c) {
              (void)c.send_note(std::string("full ") + kHash + " 0 v");
              for (int i = 0; i < 1000 && c.send_note("and then").ok(); ++i) continue;
            }),
            Code::kOk);
}

void send_full(wire::Connection& c, const std::string& hash, const std::string& text) {
  (void)c.send_note("full " + hash + " 0 v");
  send_text(c, 0,
            R"({"name":"v","folder":0,"files":[["v",)" + std::to_string(text.size()) + ",420]]}");
  (void)c.recv_note(20s);
  send_text(c, 1, text);
  (void)c.send_note("commit");
  (void)c.recv_note(20s);
}

TEST(HostileServer, AnotherVersionThanAnnounced) {
  EXPECT_EQ(follow([](wire::Connection& c) { send_full(c, kHash, "wrong"); }), Code::kCorrupt);
}

TEST(HostileServer, SilenceAfterAnyWord) {
  EXPECT_EQ(
      follow([](wire::Connection& c) { (void)c.send_note(std::string("full ") + kHash + " 0 v"); }),
      Code::kTimeout);
  EXPECT_EQ(follow([](wire::Connection& c) {
              (void)c.send_note(std::string("full ") + kHash + " 0 v");
              send_text(c, 0, R"({"name":"v","folder":0,"files":[["v",5,420]]})");
            }),
            Code::kTimeout);
  EXPECT_EQ(follow([](wire::Connection& c) {
              (void)c.send_note(std::string("full ") + kHash + " 0 v");
              send_text(c, 0, R"({"name":"v","folder":0,"files":[["v",5,420]]})");
              send_text(c, 1, "12345");
            }),
            Code::kTimeout);
}

// A follower that has a version keeps it, whatever comes as a patch.
TEST(HostileServer, PatchesThatAreNone) {
  const ScratchFolder folder;
  write_file(folder / "original", "twelve bytes");
  const std::string hash = *version_of(folder / "original");
  const std::string into = folder / "into";
  fs::create_directory(into);
  const auto honest = [&](wire::Connection& c) { send_full(c, hash, "twelve bytes"); };
  {
    const Server server(honest);
    ASSERT_TRUE(follow_versions(server.address(), into, once()).ok());
  }
  write_file(folder / "other", "other bytes!");
  ASSERT_TRUE(diff_path(folder / "original", folder / "other", folder / "good.patch").ok());
  const std::string good = read_file(folder / "good.patch");
  std::string damaged = good;
  damaged[damaged.size() / 2] ^= 1;
  const std::string other_hash = *version_of(folder / "other");
  struct Case {
    std::string announced_hash, patch;
    std::uint64_t announced_bytes;
  };
  for (const Case& bad : {Case{kHash, good, good.size()},
                          {other_hash, damaged, damaged.size()},
                          {other_hash, "garbage", 7},
                          {other_hash, "", 0},
                          {other_hash, good, good.size() + 1},
                          {other_hash, good, 1ull << 59}}) {
    const Server server([&](wire::Connection& c) {
      (void)c.send_note("patch " + bad.announced_hash + " " + std::to_string(bad.announced_bytes) +
                        " w");
      send_text(c, 0, bad.patch);
    });
    EXPECT_FALSE(follow_versions(server.address(), into, once()).ok());
    EXPECT_EQ(visible_names(into).size(), 2u);  // v and the link to it
    EXPECT_EQ(read_file(into + "/current"), "twelve bytes");
  }
}

// No Snug at all: bytes without end, a few, or none.
TEST(HostileServer, SomethingElseListens) {
  for (const std::size_t num_bytes : {std::size_t{0}, std::size_t{3}, std::size_t{64} << 20}) {
    const ScratchFolder folder;
    const Bytes babble = random_bytes(num_bytes);  // first: sanitizers make it slow
    const auto listener = net::Listener::open(net::Address{"127.0.0.1", 0});
    std::atomic<bool> stop{false};
    std::thread babbling([&] {
      while (!stop) {
        const auto client = listener->accept(net::after(20ms));
        if (!client) continue;
        (void)client->send_all(babble, net::after(5s));
        while (!stop) std::this_thread::sleep_for(5ms);
      }
    });
    const StoreStatus s =
        follow_versions("127.0.0.1:" + std::to_string(listener->port()), folder.path(), once());
    EXPECT_EQ(s.status.code, num_bytes > 80 ? Code::kPeer : Code::kTimeout) << to_string(s);
    EXPECT_TRUE(fs::is_empty(folder.path()));
    stop = true;
    babbling.join();
  }
}

// A server that has something newer every time keeps nobody who wants one version.
TEST(HostileServer, VersionsThatGoRoundInCircles) {
  const ScratchFolder folder;
  write_file(folder / "a", "a");
  write_file(folder / "b", "b");
  const std::string into = folder / "into";
  fs::create_directory(into);
  std::atomic<int> num_sent{0};
  const Server server([&](wire::Connection& c) {
    do {
      const std::string text = num_sent++ % 2 == 0 ? "a" : "b";
      send_full(c, *version_of(folder / text), text);
    } while (num_sent < 50 && c.recv_note(20s).ok());
  });
  EXPECT_TRUE(follow_versions(server.address(), into, once()).ok());
  EXPECT_EQ(read_file(into + "/current"), "a");
}

}  // namespace
}  // namespace snug::test
