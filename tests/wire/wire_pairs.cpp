#include "wire/wire_pairs.h"

#include <bit>

namespace snug::test {

using namespace std::chrono_literals;

namespace {

Pair connect_pair(const wire::Options& a, const wire::Options& b, const std::string& address) {
  Pair pair;
  auto listener = wire::Listener::open(address, b);
  EXPECT_TRUE(listener.ok()) << to_string(listener.status());
  std::thread dialling([&] {
    auto connection = wire::connect(listener->address(), a);
    EXPECT_TRUE(connection.ok()) << to_string(connection.status());
    pair.a = *connection;
  });
  auto accepted = listener->accept(20s);
  EXPECT_TRUE(accepted.ok()) << to_string(accepted.status());
  pair.b = *accepted;
  dialling.join();
  return pair;
}

}  // namespace

Pair make_pair(const wire::Options& options, const std::string& address) {
  return connect_pair(options, options, address);
}

Pair make_unequal_pair(const wire::Options& a, const wire::Options& b) {
  return connect_pair(a, b, "127.0.0.1:0");
}

Bytes gaussian_bf16(std::size_t num_bytes, std::uint64_t seed) {
  Prng prng(seed);
  Bytes bytes(num_bytes);
  for (std::size_t i = 0; i + 1 < num_bytes; i += 2) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(0.02 * prng.normal()));
    bytes[i] = static_cast<std::byte>(bits >> 16);
    bytes[i + 1] = static_cast<std::byte>(bits >> 24);
  }
  return bytes;
}

Bytes random_bytes(std::size_t num_bytes, std::uint64_t seed) {
  Prng prng(seed);
  Bytes bytes(num_bytes);
  for (auto& byte : bytes) byte = static_cast<std::byte>(prng.byte());
  return bytes;
}

void expect_round_trip(Pair& pair, DType dtype, const Bytes& data, std::uint64_t tag) {
  Bytes got(data.size());
  const std::span<const std::byte> from[] = {data};
  const std::span<std::byte> to[] = {got};
  const auto sent = pair.a.send(tag, dtype, from);
  const auto received = pair.b.recv(tag, to);
  Status s = received.wait_for(60s);
  EXPECT_TRUE(s.ok()) << to_string(s);
  s = sent.wait_for(60s);
  EXPECT_TRUE(s.ok()) << to_string(s);
  EXPECT_TRUE(got == data) << "tag " << tag << ", " << data.size() << " bytes";
}

}  // namespace snug::test
