// Many peers that were let in and are hostile: whatever they do, `snug recv` takes less than 256
// MiB in all, and an honest sender gets through in the end.
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "snug/transfer.h"
#include "store/store_files.h"
#include "support/sanitizer.h"
#include "wire/handshake.h"
#include "wire/memory_channel.h"
#include "wire/wire_pairs.h"

extern char** environ;

namespace snug::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using wire::ControlType;

constexpr int kNumPeers = 24, kNumLanes = 16;
constexpr std::size_t kLimitKb = 256 * 1024;

// `snug recv` as a process of its own, whose memory can be asked for.
class RecvProcess {
 public:
  explicit RecvProcess(const std::string& folder) {
    const std::string log = folder + "/stderr", in = folder + "/in";
    ::mkdir(in.c_str(), 0700);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT, 0600);
    const char* argv[] = {std::getenv("SNUG_CLI"), "recv",      in.c_str(), "--listen",
                          "127.0.0.1:0",           "--timeout", "5",        nullptr};
    EXPECT_EQ(::posix_spawn(&pid_, argv[0], &actions, nullptr, const_cast<char**>(argv), environ),
              0);
    ::posix_spawn_file_actions_destroy(&actions);
    for (int i = 0; i < 2000 && address_.empty(); ++i, std::this_thread::sleep_for(10ms)) {
      std::ifstream lines(log);
      std::string line;
      if (std::getline(lines, line) && line.starts_with("listening on ") && !lines.eof())
        address_ = line.substr(13);
    }
  }
  ~RecvProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  const std::string& address() const { return address_; }

  std::size_t number_of(const std::string& key) const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with(key + ":")) return std::stoul(line.substr(key.size() + 1));
    return 0;
  }
  std::size_t peak_kb() const { return number_of("VmHWM"); }

 private:
  pid_t pid_ = -1;
  std::string address_;
};

// Speaks the protocol by hand, after a proper greeting.
class HandPeer {
 public:
  explicit HandPeer(const std::string& address) {
    const auto door = wire::door_of(wire::Side::kDials, address, {});
    wire::ChannelId id{wire::random_session(), 0, kNumLanes};
    const wire::Deadline deadline = net::after(60s);
    for (; id.channel_idx <= kNumLanes; ++id.channel_idx) {
      auto channel = wire::dial(address, *door, deadline);
      if (!channel || !(*channel)->open(deadline, {}).ok() ||
          !wire::greet(**channel, id, deadline).ok())
        return;
      peer_.channels.push_back(std::move(*channel));
    }
  }

  bool tell(ControlType type, std::uint64_t message, std::span<const std::byte> payload) {
    return peer_.channels.size() > kNumLanes &&
           peer_.tell(type, message, payload, net::after(2s)).ok();
  }

  // Until this has come.
  bool hear(ControlType wanted) {
    for (const wire::Deadline deadline = net::after(20s);;) {
      wire::ControlHeader header;
      if (!peer_.control().recv(wire::writable_bytes_of(header), deadline).ok()) return false;
      Bytes payload(header.payload_bytes);
      if (!peer_.control().recv(payload, deadline).ok()) return false;
      if (header.type == ControlType::kPing) (void)tell(ControlType::kPing, 0, {});
      if (header.type == wanted) return true;
    }
  }

  bool offer(std::uint64_t number, std::uint64_t tag, std::vector<wire::Extent> extents) {
    const auto table = wire::ChunkTable::make(std::move(extents), wire::kMaxChunkBytes);
    const std::string payload = wire::offer_payload(tag, *table);
    return tell(ControlType::kOffer, number, std::as_bytes(std::span(payload)));
  }

  // The header of a chunk, and as much of it as is given.
  bool send_chunk(int lane, std::uint64_t message, std::uint64_t chunk_idx, std::size_t num_bytes,
                  std::span<const std::byte> bytes, std::chrono::milliseconds patience) {
    wire::LaneHeader header;
    header.message = message;
    header.chunk_idx = chunk_idx;
    header.raw_bytes = header.payload_bytes = num_bytes;
    header.raw_hash = wire::hash_bytes(bytes);
    wire::seal(header);
    wire::Channel& channel = *peer_.channels[static_cast<std::size_t>(lane) + 1];
    return channel.send(wire::bytes_of(header), bytes, net::after(patience)).ok();
  }

  // Announces files and hears "ok".
  bool announce(const std::string& manifest) {
    const auto bytes = std::as_bytes(std::span(manifest));
    if (!offer(1, 0, {{DType::kBytes, bytes.size()}}) || !hear(ControlType::kAccept)) return false;
    for (std::size_t at = 0, i = 0; at < bytes.size(); at += wire::kMaxChunkBytes, ++i) {
      const auto chunk = bytes.subspan(at, std::min(wire::kMaxChunkBytes, bytes.size() - at));
      if (!send_chunk(0, 1, i, chunk.size(), chunk, 20s)) return false;
    }
    return hear(ControlType::kNote);
  }

 private:
  BarePeer peer_;
};

std::string one_file(const std::string& name, std::uint64_t num_bytes) {
  return R"({"name":")" + name + R"(","folder":0,"files":[[")" + name + "\"," +
         std::to_string(num_bytes) + ",420]]}";
}

class ManyPeers : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("SNUG_CLI") == nullptr) GTEST_SKIP() << "SNUG_CLI names the program";
    if (kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  }

  // Every peer does it at the same time, and stays connected until all have. `held`: a file or
  // folder that the receiver gets before.
  template <class Attack>
  void attack(Attack attack, const std::string& held = {}) {
    const ScratchFolder folder;
    RecvProcess recv(folder.path());
    ASSERT_FALSE(recv.address().empty());
    if (!held.empty()) fs::rename(held, folder / "in/held");
    std::atomic<int> num_done{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kNumPeers; ++i)
      threads.emplace_back([&, i] {
        HandPeer peer(recv.address());
        attack(peer, i);
        ++num_done;
        while (num_done < kNumPeers) std::this_thread::sleep_for(20ms);
      });
    for (std::thread& thread : threads) thread.join();
    RecordProperty("peak_kb", static_cast<int>(recv.peak_kb()));
    std::printf("recv: %zu kB, %zu threads\n", recv.peak_kb(), recv.number_of("Threads"));
    EXPECT_LT(recv.peak_kb(), kLimitKb);
    write_file(folder / "honest", "bytes");
    TransferOptions options;
    options.num_retries = 20;
    const auto sent = send_path(folder / "honest", recv.address(), options);
    EXPECT_TRUE(sent.ok()) << to_string(sent.status());
    EXPECT_EQ(read_file(folder / "in/honest"), "bytes");
  }
};

TEST_F(ManyPeers, NotesThatNobodyReads) {
  for (const std::size_t num_bytes : {std::size_t{1} << 20, std::size_t{4096}})
    attack([&](HandPeer& peer, int i) {
      if (!peer.announce(one_file("x" + std::to_string(i), 1000))) return;
      const Bytes note(num_bytes);
      for (int n = 0; n < 60 && peer.tell(ControlType::kNote, 0, note); ++n) continue;
    });
}

TEST_F(ManyPeers, ChunksThatStopInTheMiddle) {
  const Bytes chunk(wire::kMaxChunkBytes - 1);
  attack([&](HandPeer& peer, int i) {
    const std::uint64_t num_bytes = kNumLanes * wire::kMaxChunkBytes;
    if (!peer.announce(one_file("x" + std::to_string(i), num_bytes))) return;
    if (!peer.offer(2, 1, {{DType::kBytes, num_bytes}}) || !peer.hear(ControlType::kAccept)) return;
    for (int lane = 0; lane < kNumLanes; ++lane)
      (void)peer.send_chunk(lane, 2, static_cast<std::uint64_t>(lane), wire::kMaxChunkBytes, chunk,
                            200ms);
  });
}

TEST_F(ManyPeers, OffersOfManyPieces) {
  attack([](HandPeer& peer, int) {
    std::vector<wire::Extent> extents(wire::kMaxExtents);
    for (std::size_t i = 0; i < extents.size(); ++i)
      extents[i] = {i % 2 == 0 ? DType::kBytes : DType::kBF16, 2};
    for (std::uint64_t i = 1; i <= 4 && peer.offer(i, 100 + i, extents); ++i) continue;
  });
}

TEST_F(ManyPeers, ListsOfManyFiles) {
  std::string files;
  for (int i = 0; i < 190'000; ++i) {
    char entry[100];
    std::snprintf(entry, sizeof entry, "%s[\"layers/tensor-with-a-long-name-%06d.part\",0,420]",
                  i == 0 ? "" : ",", i);
    files += entry;
  }
  attack([&](HandPeer& peer, int i) {
    const std::string name = "x" + std::to_string(i);
    (void)peer.announce(R"({"name":")" + name + R"(","folder":1,"files":[)" + files + "]}");
  });
}

// A sender that returns asks whether the receiver has its version already, which has to be hashed,
// and restored if it is compressed.
TEST_F(ManyPeers, AllAskByVersion) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < 100'000; ++i)
    tensors.push_back({"model.layers.tensor-" + std::to_string(i), "BF16", {1, 2}, "abcd"});
  const ScratchFolder folder;
  write_file(folder / "plain", make_file(tensors));
  tensors = {};
  ASSERT_TRUE(compress_path(folder / "plain", folder / "held").ok());
  const std::string manifest = one_file("held", fs::file_size(folder / "held"));
  attack(
      [&](HandPeer& peer, int i) {
        std::string version(32, '0');
        version[0] = static_cast<char>('0' + i % 10);
        (void)peer.announce(manifest.substr(0, manifest.size() - 1) + R"(,"version":")" + version +
                            "\"}");
      },
      folder / "held");
}

// The folder that a sender asks for has to be listed, whatever it says is in it.
TEST_F(ManyPeers, AllAskForAFolderOfManyFiles) {
  const ScratchFolder folder;
  fs::create_directory(folder / "held");
  for (int i = 0; i < 40'000; ++i)
    write_file(folder / ("held/" + std::string(200, 'x') + std::to_string(i)), "");
  attack(
      [](HandPeer& peer, int) {
        (void)peer.announce(R"({"name":"held","folder":1,"files":[["a",0,420]],"version":")" +
                            std::string(32, '0') + "\"}");
      },
      folder / "held");
}

}  // namespace
}  // namespace snug::test
