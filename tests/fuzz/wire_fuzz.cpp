// Any bytes as what a peer may send: an offer, a list of files.
#include <string_view>

#include "fuzz/fuzz_frame.h"
#include "transfer/manifest.h"
#include "wire/protocol.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace snug;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto offer = wire::parse_offer(bytes)) {
    // Chunks cover the message without gap or overlap.
    const wire::ChunkTable& table = offer->table;
    const std::uint64_t num_looks = table.num_chunks() < 1000 ? table.num_chunks() : 1000;
    std::uint64_t at = 0;
    for (std::uint64_t i = 0; i < num_looks; ++i) {
      const wire::ChunkPlace place = table.at(i);
      test::require(place.offset == at && place.num_bytes > 0 &&
                    place.num_bytes <= table.chunk_bytes());
      at += place.num_bytes;
    }
    if (num_looks == table.num_chunks()) test::require(at == table.num_bytes());
    test::require(wire::offer_payload(offer->tag, table) ==
                  std::string_view(reinterpret_cast<const char*>(data), size));
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto manifest = transfer::parse_manifest(text)) {
    for (const transfer::ManifestFile& file : manifest->files)
      test::require(transfer::is_safe_name(file.name));
    const auto again = transfer::parse_manifest(transfer::to_json(*manifest));
    test::require(again.ok() && again->files.size() == manifest->files.size());
  }
  return 0;
}
