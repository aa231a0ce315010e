// Messages from and to GPU memory: device to device, and with a CPU at either end.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "gpu/gpu_buffers.h"
#include "gpu/gpu_pages.h"
#include "snug/gpu_link.h"
#include "support/inputs.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;

struct Ends {
  wire::Connection a, b;
};

Ends connect_ends(wire::Mode mode) {
  wire::Options options;
  options.mode = mode;
  options.chunk_bytes = 256 << 10;
  auto listener = wire::Listener::open("127.0.0.1:0", options);
  Ends ends;
  std::thread dialling([&] { ends.a = *wire::connect(listener->address(), options); });
  ends.b = *listener->accept(20s);
  dialling.join();
  return ends;
}

void expect_done(const wire::Transfer& transfer) {
  const Status s = transfer.wait_for(60s);
  EXPECT_TRUE(s.ok()) << to_string(s);
}

TEST(GpuWire, EveryModeBetweenDevicesAndCpus) {
  const Bytes data = make_input(input_named("gaussian"), DType::kBF16, 700'001);
  const std::span<const std::byte> from_cpu[] = {data};
  for (const wire::Mode mode : {wire::Mode::kRaw, wire::Mode::kFixed, wire::Mode::kEntropy})
    for (const std::size_t page_bytes : {std::size_t{4} << 20, std::size_t{48} << 10}) {
      Ends ends = connect_ends(mode);
      const Pages from(data.size(), page_bytes), to(data.size(), 64 << 10),
          from_host(data.size(), page_bytes);
      from.fill(data);
      auto source = cuda::wire_source(DType::kBF16, from.segments());
      auto sink = cuda::wire_sink(DType::kBF16, to.segments());
      ASSERT_TRUE(source.ok() && sink.ok());
      // device to device
      wire::Transfer sent = ends.a.send(1, *source);
      expect_done(ends.b.recv(1, *sink));
      expect_done(sent);
      EXPECT_TRUE(to.read() == data);
      // device to CPU
      Bytes got(data.size());
      const std::span<std::byte> to_cpu[] = {got};
      sent = ends.a.send(2, *source);
      expect_done(ends.b.recv(2, to_cpu));
      expect_done(sent);
      EXPECT_TRUE(got == data);
      // CPU to device
      auto other = cuda::wire_sink(DType::kBF16, from_host.segments());
      sent = ends.a.send(3, DType::kBF16, from_cpu);
      expect_done(ends.b.recv(3, *other));
      expect_done(sent);
      EXPECT_TRUE(from_host.read() == data);
    }
}

TEST(GpuWire, AnotherDtypeIsRefused) {
  Ends ends = connect_ends(wire::Mode::kEntropy);
  const Pages from(1000, 1000), to(1000, 1000);
  auto source = cuda::wire_source(DType::kBF16, from.segments());
  auto sink = cuda::wire_sink(DType::kF32, to.segments());
  const wire::Transfer sent = ends.a.send(1, *source);
  EXPECT_EQ(ends.b.recv(1, *sink).wait_for(60s).code, Code::kUsage);
  EXPECT_FALSE(sent.wait_for(60s).ok());
}

}  // namespace
}  // namespace snug::test
