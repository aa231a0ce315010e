// Link: GPU memory to GPU memory, inside one process and between two.
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <deque>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "gpu/gpu_buffers.h"
#include "gpu/gpu_pages.h"
#include "gpu_link/cuda/link.h"
#include "gpu_link/cuda/segment_copy.h"
#include "snug/gpu_link.h"
#include "snug/wire.h"
#include "support/paced_engine.h"
#include "support/raw_checksum.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;
using cuda::Link;
using wire::Mode;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr auto kTimeout = 20s;

cuda::WrapEngine paced(double rate) {
  return
      [rate](
          std::unique_ptr<gpu_link::SendEngine> engine) -> std::unique_ptr<gpu_link::SendEngine> {
        if (rate == 0) return engine;
        return std::make_unique<bench::PacedEngine>(std::move(engine), rate);
      };
}

// The value; without one, the test ends here.
template <class T>
T take(Result<T> result) {
  if (!result) throw std::runtime_error(to_string(result.status()));
  return std::move(*result);
}

struct Ends {
  wire::Connection near, far;
  Link a, b;

  explicit Ends(Mode mode = Mode::kAuto, double rate = 0, const cuda::WrapEngine& wrap = {}) {
    const cuda::WrapEngine link_of_a = wrap ? wrap : paced(rate);
    auto listener = take(wire::Listener::open("127.0.0.1:0"));
    std::exception_ptr failure;
    std::thread dialling([&] {
      try {
        near = take(wire::connect(listener.address()));
        a = take(cuda::open_link(near, mode, kTimeout, link_of_a));
      } catch (const std::exception&) {
        failure = std::current_exception();
      }
    });
    try {
      far = take(listener.accept(20s));
      b = take(cuda::open_link(far, mode, kTimeout, paced(rate)));
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    dialling.join();
    if (failure) std::rethrow_exception(failure);
  }
};

void expect_done(const wire::Transfer& transfer) {
  const Status s = transfer.wait_for(60s);
  EXPECT_TRUE(s.ok()) << to_string(s);
}

Bytes weights(std::size_t num_bytes) {
  Bytes data = make_input(input_named("gaussian"), DType::kBF16, num_bytes / 2 + 1);
  data.resize(num_bytes);
  return data;
}

void expect_arrives(Link& from, Link& to, const Bytes& data, std::size_t page_from,
                    std::size_t page_to, DType dtype = DType::kBF16) {
  const Pages source(data.size(), page_from), sink(data.size(), page_to);
  source.fill(data);
  const auto received = to.recv(1, dtype, sink.segments());
  const auto sent = from.send(1, dtype, source.segments());
  expect_done(received);
  expect_done(sent);
  EXPECT_TRUE(sink.read() == data)
      << data.size() << " bytes, pages of " << page_from << " to " << page_to;
  EXPECT_TRUE(sink.gaps_are_intact());
}

std::uint64_t num_frames(const Link& link) {
  return link.sent().num_chunks[1] + link.sent().num_chunks[2];
}

// Encoders get ready beside the first messages, which travel raw.
void send_until_frames(Link& from, Link& to) {
  const Bytes data = weights(8 * kMiB);
  for (int i = 0; i < 300 && num_frames(from) == 0; ++i)
    expect_arrives(from, to, data, data.size(), data.size());
  EXPECT_GT(num_frames(from), 0u);
}

TEST(GpuLink, EverySizeInOnePiece) {
  Ends ends;
  for (const std::size_t n :
       {std::size_t{1}, std::size_t{1000}, std::size_t{65'537}, kMiB, 5 * kMiB + 6, 40 * kMiB})
    expect_arrives(ends.a, ends.b, weights(n), n, n);
  expect_arrives(ends.b, ends.a, weights(3 * kMiB), 3 * kMiB, 3 * kMiB);  // the other direction
}

TEST(GpuLink, SlowLinksGetFramesOfEveryMode) {
  for (const Mode mode : {Mode::kAuto, Mode::kEntropy, Mode::kFixed, Mode::kRaw}) {
    Ends ends(mode, 5e9);
    const Bytes data = weights(24 * kMiB + 10);
    for (int i = 0; i < 3; ++i) expect_arrives(ends.a, ends.b, data, data.size(), data.size());
    const wire::Stats stats = ends.a.sent();
    const std::uint64_t coded = stats.num_chunks[1] + stats.num_chunks[2];
    if (mode == Mode::kRaw)
      EXPECT_EQ(coded, 0u);
    else
      EXPECT_GT(coded, 3u);
    // How many is a matter of time: the first message also waits for the encoders' memory.
    if (mode != Mode::kRaw) EXPECT_LT(stats.wire_bytes, stats.raw_bytes);
  }
}

TEST(GpuLink, PagesAreGatheredAndScattered) {
  Ends fast, slow(Mode::kAuto, 5e9);
  const Bytes data = weights(20 * kMiB + 4242);
  for (Ends* ends : {&fast, &slow})
    for (const auto& [from, to] : {std::pair<std::size_t, std::size_t>{32 << 10, 32 << 10},
                                   {48 << 10, 20 * kMiB + 4242},
                                   {20 * kMiB + 4242, 16'000},
                                   {10'001, 4098}})
      expect_arrives(ends->a, ends->b, data, from, to);
  EXPECT_GT(slow.a.sent().num_chunks[1] + slow.a.sent().num_chunks[2], 0u);
}

// The first type of a link has its graphs, the others do without; 6 bytes off, so has nobody.
TEST(GpuLink, TypesAndPlacesThatAreNotUsual) {
  Ends ends(Mode::kAuto, 5e9);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kBytes}) {
    const Bytes data = make_input(input_named("gaussian"), dtype, 12 * kMiB / elem_bytes(dtype));
    for (int i = 0; i < 3; ++i) {
      expect_arrives(ends.a, ends.b, data, data.size(), data.size(), dtype);
      expect_arrives(ends.a, ends.b, data, (2 * kMiB) + 6, (3 * kMiB) + 2, dtype);
    }
  }
  EXPECT_GT(ends.a.sent().num_chunks[1] + ends.a.sent().num_chunks[2], 12u);
}

TEST(GpuLink, MemoryIsBounded) {
  const Bytes data = weights(24 * kMiB);
  std::size_t before = 0, after = 0, total = 0;
  for (int round = 0; round < 2; ++round) {  // what the first loads of code stays
    SNUG_CUDA_OK(cudaMemGetInfo(&before, &total));
    Ends ends(Mode::kAuto, 5e9);
    send_until_frames(ends.a, ends.b);
    send_until_frames(ends.b, ends.a);
    const Pages pages(data.size(), 32 << 10), there(data.size(), 32 << 10);
    pages.fill(data);
    for (Link* from : {&ends.a, &ends.b}) {
      Link* to = from == &ends.a ? &ends.b : &ends.a;
      const auto received = to->recv(1, DType::kBF16, there.segments());
      expect_done(from->send(1, DType::kBF16, pages.segments()));
      expect_done(received);
    }
    SNUG_CUDA_OK(cudaMemGetInfo(&after, &total));
  }
  // Both ends are in this process, and so are two tensors with gaps as large as they are.
  EXPECT_LE(before - after, 2 * 72 * kMiB + 4 * data.size() + 4 * kMiB);
}

TEST(GpuLink, RandomBitsTravelRaw) {
  Ends ends(Mode::kAuto, 5e9);
  send_until_frames(ends.a, ends.b);
  const std::uint64_t before = num_frames(ends.a);
  const Bytes data = make_input(input_named("random_bits"), DType::kBF16, 8 * kMiB);
  for (int i = 0; i < 3; ++i) expect_arrives(ends.a, ends.b, data, data.size(), data.size());
  EXPECT_EQ(num_frames(ends.a), before);
}

TEST(GpuLink, ManyMessagesAtOnceBothWays) {
  Ends ends(Mode::kAuto, 20e9);
  const Bytes data = weights(6 * kMiB);
  const Pages source(data.size(), data.size());
  source.fill(data);
  std::vector<std::unique_ptr<Pages>> sinks;
  std::vector<wire::Transfer> transfers;
  for (std::uint64_t i = 0; i < 20; ++i) {
    sinks.push_back(std::make_unique<Pages>(data.size(), data.size()));
    Link& from = i % 2 == 0 ? ends.a : ends.b;
    Link& to = i % 2 == 0 ? ends.b : ends.a;
    transfers.push_back(from.send(i, DType::kBF16, source.segments()));
    transfers.push_back(to.recv(i, DType::kBF16, sinks.back()->segments()));
  }
  for (const auto& transfer : transfers) expect_done(transfer);
  for (const auto& sink : sinks) EXPECT_TRUE(sink->read() == data);
}

// A peer whose frames are something else.
class LyingEngine : public bench::PacedEngine {
 public:
  LyingEngine(std::unique_ptr<gpu_link::SendEngine> inner, std::shared_ptr<cuda::GpuTensor> lie)
      : PacedEngine(std::move(inner), 5e9), lie_(std::move(lie)) {}
  Status copy_frame(int, std::size_t num_bytes, std::size_t place) override {
    return copy_raw(*lie_, {0, num_bytes}, place);
  }

 private:
  const std::shared_ptr<cuda::GpuTensor> lie_;
};

TEST(GpuLink, FramesThatAreNone) {
  const Bytes lies = make_input(input_named("random_bits"), DType::kBF16, 4 * kMiB);
  const Bytes data = weights(24 * kMiB);
  const Pages noise(lies.size(), lies.size()), source(data.size(), data.size()),
      sink(data.size(), 32 << 10);
  noise.fill(lies);
  source.fill(data);
  Ends ends(Mode::kEntropy, 0, [&](std::unique_ptr<gpu_link::SendEngine> engine) {
    return std::make_unique<LyingEngine>(
        std::move(engine), std::make_shared<cuda::GpuTensor>(DType::kBF16, noise.segments()));
  });
  Status received, sent;  // OK until there are frames
  for (int i = 0; i < 300 && received.ok(); ++i) {
    const auto incoming = ends.b.recv(1, DType::kBF16, sink.segments());
    const auto outgoing = ends.a.send(1, DType::kBF16, source.segments());
    received = incoming.wait_for(60s);
    sent = outgoing.wait_for(60s);
  }
  EXPECT_EQ(received.code, Code::kCorrupt);
  EXPECT_EQ(sent.code, Code::kCorrupt);
  EXPECT_TRUE(sink.gaps_are_intact());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

// Changes one byte of the staging memory behind the third raw piece, whose checksum is made from
// the tensor.
class DamagingEngine : public bench::PacedEngine {
 public:
  // wrong: as large as the message, and different in every byte.
  DamagingEngine(std::unique_ptr<gpu_link::SendEngine> inner,
                 std::shared_ptr<cuda::GpuTensor> wrong)
      : PacedEngine(std::move(inner), 0), wrong_(std::move(wrong)) {}
  Status copy_raw(const gpu_link::LinkTensor& tensor, gpu_link::LinkSpan span,
                  std::size_t place) override {
    if (Status s = PacedEngine::copy_raw(tensor, span, place); !s.ok()) return s;
    const bool spoils = ++num_pieces_ == 3;
    copies_.push_back(spoils ? Part::kRight : Part::kAlone);
    if (!spoils) return {};
    copies_.push_back(Part::kWrong);
    const std::size_t middle = span.num_bytes / 2;
    return PacedEngine::copy_raw(*wrong_, {span.offset + middle, 1}, place + middle);
  }
  // The piece has arrived when both of its copies have.
  Result<bool> copied(std::uint64_t& checksum) override {
    std::uint64_t found = 0;
    const auto done = PacedEngine::copied(found);
    if (!done || !*done) return done;
    const Part part = copies_.front();
    copies_.pop_front();
    if (part != Part::kWrong) checksum_ = found;
    checksum = checksum_;
    return part != Part::kRight;
  }

 private:
  enum class Part { kAlone, kRight, kWrong };
  const std::shared_ptr<cuda::GpuTensor> wrong_;
  std::deque<Part> copies_;
  std::uint64_t checksum_ = 0;
  int num_pieces_ = 0;
};

TEST(GpuLink, RawBytesThatWereDamaged) {
  const Bytes data = weights(24 * kMiB + 6);
  Bytes other = data;
  for (std::byte& b : other) b ^= std::byte{4};
  const Pages wrong(data.size(), data.size());
  wrong.fill(other);
  for (const auto& [from, to] :
       {std::pair<std::size_t, std::size_t>{data.size(), data.size()}, {32 << 10, 48 << 10}}) {
    const Pages source(data.size(), from), sink(data.size(), to);
    source.fill(data);
    Ends ends(Mode::kRaw, 0, [&](std::unique_ptr<gpu_link::SendEngine> engine) {
      return std::make_unique<DamagingEngine>(
          std::move(engine), std::make_shared<cuda::GpuTensor>(DType::kBF16, wrong.segments()));
    });
    const auto received = ends.b.recv(1, DType::kBF16, sink.segments());
    const auto sent = ends.a.send(1, DType::kBF16, source.segments());
    const Status s = received.wait_for(60s);
    EXPECT_EQ(s.code, Code::kCorrupt) << to_string(s);
    EXPECT_NE(to_string(s).find("checksum"), std::string::npos) << to_string(s);
    EXPECT_EQ(sent.wait_for(60s).code, Code::kCorrupt);
    EXPECT_FALSE(ends.a.status().ok());
  }
}

// What copies and adds up at the same time does both, at any address and in pieces of any size.
TEST(GpuLink, ChecksumsOfCopies) {
  using cuda::CopyWay;
  cuda::CopySum sum;  // for all of them, as in a link
  const auto sum_of = [&](CopyWay way, std::span<const cuda::Segment> pieces, void* memory,
                          std::size_t num_bytes) {
    EXPECT_EQ(cuda::copy_segments(way, pieces, memory, &sum, nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return sum.checksum(num_bytes);
  };
  for (const std::size_t n : {std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{4099},
                              std::size_t{65'536}, 3 * kMiB + 7, 4 * kMiB})
    for (const std::size_t page :
         {n, std::size_t{32 << 10}, std::size_t{10'001}, std::size_t{1040}}) {
      const Bytes data = weights(n);
      const std::uint64_t want = raw_checksum(data.data(), n);
      const Pages source(n, page), sink(n, page);
      source.fill(data);
      const DeviceBuffer memory(n);
      EXPECT_EQ(sum_of(CopyWay::kGather, source.segments(), memory.data(), n), want)
          << n << ", " << page;
      EXPECT_TRUE(memory.download(n) == data && memory.end_is_intact()) << n << ", " << page;
      EXPECT_EQ(sum_of(CopyWay::kScatter, sink.segments(), memory.data(), n), want)
          << n << ", " << page;
      EXPECT_TRUE(sink.read() == data && sink.gaps_are_intact()) << n << ", " << page;
      const DeviceBuffer aside(data, 6);  // a tensor at an odd address
      const cuda::Segment whole{aside.data(), n};
      EXPECT_EQ(sum_of(CopyWay::kGather, {&whole, 1}, memory.data(), n), want) << n;
      EXPECT_TRUE(memory.download(n) == data && memory.end_is_intact()) << n;
      EXPECT_EQ(sum_of(CopyWay::kScatter, {&whole, 1}, memory.data(), n), want) << n;
      EXPECT_TRUE(aside.download(n) == data && aside.end_is_intact()) << n;
    }
}

TEST(GpuLink, WrongSizesAndTypesAreRefused) {
  const Pages from(1000, 1000), shorter(998, 998);
  {
    Ends ends;
    const auto sent = ends.a.send(1, DType::kBF16, from.segments());
    EXPECT_EQ(ends.b.recv(1, DType::kBF16, shorter.segments()).wait_for(60s).code,
              Code::kDstTooSmall);
    EXPECT_EQ(sent.wait_for(60s).code, Code::kPeer);
    EXPECT_FALSE(ends.a.status().ok());
  }
  Ends ends;
  const auto sent = ends.a.send(1, DType::kBF16, from.segments());
  EXPECT_EQ(ends.b.recv(1, DType::kF32, from.segments()).wait_for(60s).code, Code::kUsage);
  EXPECT_EQ(sent.wait_for(60s).code, Code::kPeer);
}

TEST(GpuLink, PiecesThatAreTooSmall) {
  Ends ends;
  const Pages crumbs(kMiB, 16);
  EXPECT_EQ(ends.a.send(1, DType::kBF16, crumbs.segments()).wait_for(60s).code, Code::kUsage);
}

TEST(GpuLink, SegmentsThatNoMemoryHolds) {
  Ends ends;
  const Pages page(1000, 1000);
  const cuda::Segment part = page.segments()[0];
  const cuda::Segment two[] = {{part.data, ~std::uint64_t{0}}, part};
  EXPECT_EQ(ends.a.send(1, DType::kBF16, two).wait_for(60s).code, Code::kUsage);
  EXPECT_EQ(ends.b.recv(1, DType::kBF16, two).wait_for(60s).code, Code::kUsage);
}

// The link's threads allocate, record and query while a capture is under way.
TEST(GpuLink, AUserMayCaptureAGraph) {
  Ends ends(Mode::kEntropy, 5e9);
  const Bytes data = weights(16 * kMiB);
  const Pages source(data.size(), data.size()), sink(data.size(), 32 << 10);
  source.fill(data);
  cudaStream_t stream;
  cudaGraph_t graph = nullptr;
  SNUG_CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  SNUG_CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 100 && num_frames(ends.a) == 0; ++i) {
    const auto received = ends.b.recv(1, DType::kBF16, sink.segments());
    expect_done(ends.a.send(1, DType::kBF16, source.segments()));
    expect_done(received);
  }
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_GT(num_frames(ends.a), 0u);
  EXPECT_TRUE(sink.read() == data);
  SNUG_CUDA_OK(cudaGraphDestroy(graph));
  SNUG_CUDA_OK(cudaStreamDestroy(stream));
}

TEST(GpuLink, NobodyAtTheOtherEnd) {
  auto listener = wire::Listener::open("127.0.0.1:0");
  wire::Connection near;
  std::thread dialling([&] { near = *wire::connect(listener->address()); });
  wire::Connection far = *listener->accept(20s);
  dialling.join();
  EXPECT_EQ(Link::open(near, Mode::kAuto, 300ms).status().code, Code::kTimeout);
}

// ---- two processes: this program, started again with what to do ----------------

constexpr char kRole[] = "SNUG_LINK_TEST_ROLE", kAddress[] = "SNUG_LINK_TEST_ADDRESS";

pid_t start_peer(const char* role, const std::string& address) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setenv(kRole, role, 1);
  ::setenv(kAddress, address.c_str(), 1);
  ::execl("/proc/self/exe", "gpu_link_test", "--gtest_filter=GpuLinkPeer.*", nullptr);
  ::_exit(99);
}

// The other process: sends two messages, or one of which only half arrives.
TEST(GpuLinkPeer, Runs) {
  const char* role = std::getenv(kRole);
  if (role == nullptr) GTEST_SKIP() << "started by the other tests";
  auto connection = wire::connect(std::getenv(kAddress));
  ASSERT_TRUE(connection.ok());
  const bool dies = std::strcmp(role, "dies") == 0;
  auto link = cuda::open_link(*connection, Mode::kAuto, kTimeout, paced(dies ? 1e7 : 5e9));
  ASSERT_TRUE(link.ok()) << to_string(link.status());
  const Bytes data = weights(16 * kMiB);
  const Pages source(data.size(), 32 << 10);
  source.fill(data);
  const auto sent = link->send(1, DType::kBF16, source.segments());
  if (dies) {
    for (int i = 0; i < 30'000 && link->sent().num_chunks[0] == 0; ++i)
      std::this_thread::sleep_for(1ms);
    ::kill(::getpid(), SIGKILL);
  }
  expect_done(sent);
  const Pages back(data.size(), data.size());
  expect_done(link->recv(2, DType::kBF16, back.segments()));
  EXPECT_TRUE(back.read() == data);
}

struct PeerProcess {
  pid_t child = -1;
  wire::Connection connection;
  std::optional<Result<Link>> opened;

  explicit PeerProcess(const char* role) {
    auto listener = take(wire::Listener::open("127.0.0.1:0"));
    child = start_peer(role, listener.address());
    connection = take(listener.accept(60s));
    (void)opened.emplace(Link::open(connection, Mode::kAuto, kTimeout));
    EXPECT_TRUE(opened->ok()) << to_string(opened->status());
  }
  Link& link() { return **opened; }
  int wait() const {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }
};

TEST(GpuLink, BetweenTwoProcesses) {
  PeerProcess peer("sends");
  ASSERT_TRUE(peer.opened->ok());
  const Bytes data = weights(16 * kMiB);
  const Pages sink(data.size(), 64 << 10);
  expect_done(peer.link().recv(1, DType::kBF16, sink.segments()));
  EXPECT_TRUE(sink.read() == data);
  expect_done(peer.link().send(2, DType::kBF16, sink.segments()));
  EXPECT_EQ(peer.wait(), 0);
}

TEST(GpuLink, APeerThatIsKilled) {
  PeerProcess peer("dies");
  ASSERT_TRUE(peer.opened->ok());
  const Pages sink(16 * kMiB, 16 * kMiB);
  EXPECT_EQ(peer.link().recv(1, DType::kBF16, sink.segments()).wait_for(60s).code, Code::kPeer);
  EXPECT_TRUE(WIFSIGNALED(peer.wait()));
}

}  // namespace
}  // namespace snug::test
