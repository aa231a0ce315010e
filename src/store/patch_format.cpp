#include "store/patch_format.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "store/file_hash.h"

namespace snug::store {
namespace {

constexpr char kMagic[] = "SNUGPTCH";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHashDigits = 32;
constexpr std::size_t kHashOffset = 64;  // of the header: 32 hexadecimal digits
constexpr int kZstdLevel = 6;
// What is allocated for a manifest must be justified by the size of the patch. Real ones
// shrink by 2 to 10; small ones may be as regular as they like.
constexpr std::uint64_t kMaxManifestRatio = 64;
constexpr std::uint64_t kSmallManifestBytes = std::uint64_t{16} << 20;
constexpr std::size_t kMaxNameBytes = 4096;

// Numbers as in LEB128, texts behind their length.
class ManifestWriter {
 public:
  void number(std::uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
  }
  void text(const std::string& value) {
    number(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const noexcept { return bytes_; }

 private:
  std::string bytes_;
};

// Every read says false once the bytes are used up.
class ManifestReader {
 public:
  explicit ManifestReader(std::string_view bytes) : bytes_(bytes) {}

  bool number(std::uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<std::uint8_t>(bytes_[0]);
      bytes_.remove_prefix(1);
      value |= std::uint64_t{byte & 127u} << shift;
      if (byte < 128) return true;
    }
    return false;
  }
  bool text(std::string& value, std::size_t max_bytes) {
    std::uint64_t n;
    if (!number(n) || n > max_bytes || n > bytes_.size()) return false;
    value = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return true;
  }
  // How many of something follow; each takes at least a byte.
  bool count(std::uint64_t& n) { return number(n) && n <= bytes_.size(); }
  bool at_end() const noexcept { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

StoreStatus bad(const File& patch, const char* what, const std::string& detail = {}) {
  return failure(Code::kCorrupt, what, patch.path(), detail);
}

std::string hash_of(std::string_view header, std::string_view manifest) {
  FileHash hash;
  hash.update(header.data(), header.size());
  hash.update(manifest.data(), manifest.size());
  return hash.hex();
}

void write_file_entry(const PatchFile& file, ManifestWriter& out) {
  out.text(file.name);
  out.number(file.num_bytes);
  out.text(file.hash);
}

bool read_file_entry(ManifestReader& in, PatchFile& file) {
  return in.text(file.name, kMaxNameBytes) && in.number(file.num_bytes) &&
         in.text(file.hash, kHashDigits) && file.hash.size() == kHashDigits;
}

std::string pack(const Manifest& manifest) {
  ManifestWriter out;
  out.number(manifest.is_folder);
  out.number(manifest.num_changed);
  out.number(manifest.base.size());
  for (const PatchFile& file : manifest.base) write_file_entry(file, out);
  out.number(manifest.sub_folders.size());
  for (const std::string& name : manifest.sub_folders) out.text(name);
  out.number(manifest.files.size());
  for (const PatchFile& file : manifest.files) {
    write_file_entry(file, out);
    out.number(file.pieces.size());
    for (const Piece& piece : file.pieces) {
      out.number(static_cast<std::uint64_t>(piece.kind));
      out.number(piece.num_bytes);
      if (piece.kind <= PieceKind::kDelta) {
        out.number(piece.base_file);
        out.number(piece.base_offset);
      }
      if (piece.kind != PieceKind::kCopy) out.number(piece.stored_bytes);
    }
  }
  return out.bytes();
}

bool read_piece(ManifestReader& in, const Manifest& manifest, Piece& piece) {
  std::uint64_t kind, base_file = 0;
  if (!in.number(kind) || kind >= kNumPieceKinds || !in.number(piece.num_bytes)) return false;
  piece.kind = static_cast<PieceKind>(kind);
  if (piece.num_bytes == 0) return false;
  if (piece.kind != PieceKind::kCopy && piece.num_bytes > kMaxPieceBytes) return false;
  if (piece.kind <= PieceKind::kDelta) {
    if (!in.number(base_file) || base_file >= manifest.base.size() || !in.number(piece.base_offset))
      return false;
    piece.base_file = static_cast<std::uint32_t>(base_file);
    const std::uint64_t limit = manifest.base[piece.base_file].num_bytes;
    if (piece.base_offset > limit || piece.num_bytes > limit - piece.base_offset) return false;
  }
  // No piece is worth storing if it takes more than this.
  return piece.kind == PieceKind::kCopy ||
         (in.number(piece.stored_bytes) && piece.stored_bytes <= 2 * kMaxPieceBytes);
}

bool read_pieces(ManifestReader& in, const Manifest& manifest, PatchFile& file) {
  std::uint64_t num_pieces, at = 0;
  if (!in.count(num_pieces)) return false;
  file.pieces.resize(num_pieces);
  for (Piece& piece : file.pieces) {
    if (!read_piece(in, manifest, piece) || piece.num_bytes > file.num_bytes - at) return false;
    at += piece.num_bytes;
  }
  return at == file.num_bytes;
}

bool unpack(std::string_view bytes, Manifest& manifest) {
  ManifestReader in(bytes);
  std::uint64_t is_folder, num_base, num_folders, num_files;
  if (!in.number(is_folder) || is_folder > 1 || !in.number(manifest.num_changed)) return false;
  manifest.is_folder = is_folder == 1;
  if (!in.count(num_base)) return false;
  manifest.base.resize(num_base);
  for (PatchFile& file : manifest.base)
    if (!read_file_entry(in, file)) return false;
  if (!in.count(num_folders)) return false;
  manifest.sub_folders.resize(num_folders);
  for (std::string& name : manifest.sub_folders)
    if (!in.text(name, kMaxNameBytes)) return false;
  if (!in.count(num_files)) return false;
  manifest.files.resize(num_files);
  for (PatchFile& file : manifest.files)
    if (!read_file_entry(in, file) || !read_pieces(in, manifest, file)) return false;
  return in.at_end();
}

// Names that are unique, safe, and whose folders are there.
bool names_are_good(const Manifest& manifest) {
  if (!manifest.is_folder)
    return manifest.base.size() == 1 && manifest.files.size() == 1 &&
           manifest.sub_folders.empty() && manifest.base[0].name.empty() &&
           manifest.files[0].name.empty();
  std::set<std::string_view> names, folders;
  const auto is_new = [&](std::string_view name) {
    const std::size_t slash = name.rfind('/');
    return is_safe_name(name) && names.insert(name).second &&
           (slash == std::string_view::npos || folders.contains(name.substr(0, slash)));
  };
  for (const std::string& name : manifest.sub_folders) {  // parents first
    if (!is_new(name)) return false;
    folders.insert(name);
  }
  for (const PatchFile& file : manifest.files)
    if (!is_new(file.name)) return false;
  return std::all_of(manifest.base.begin(), manifest.base.end(),
                     [](const PatchFile& file) { return is_safe_name(file.name); });
}

}  // namespace

std::uint64_t Manifest::target_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const PatchFile& file : files) sum += file.num_bytes;
  return sum;
}

std::string version_of_files(const std::vector<PatchFile>& files, bool is_folder) {
  if (!is_folder) return files.empty() ? std::string() : files[0].hash;
  FileHash hash;
  for (const PatchFile& file : files) {
    const std::string line =
        file.name + "\n" + std::to_string(file.num_bytes) + "\n" + file.hash + "\n";
    hash.update(line.data(), line.size());
  }
  return hash.hex();
}

PatchInfo info_of(const Manifest& manifest, std::uint64_t patch_bytes) {
  PatchInfo info;
  info.is_folder = manifest.is_folder;
  info.base_version = version_of_files(manifest.base, manifest.is_folder);
  info.target_version = version_of_files(manifest.files, manifest.is_folder);
  info.num_files = manifest.files.size();
  info.num_changed = manifest.num_changed;
  info.target_bytes = manifest.target_bytes();
  info.patch_bytes = patch_bytes;
  for (const PatchFile& file : manifest.base) info.base_bytes += file.num_bytes;
  for (const PatchFile& file : manifest.files)
    for (const Piece& piece : file.pieces) {
      const bool is_delta = piece.kind == PieceKind::kDelta;
      if (piece.kind == PieceKind::kCopy) {
        info.copied_bytes += piece.num_bytes;
      } else {
        (is_delta ? info.delta_bytes : info.full_bytes) += piece.num_bytes;
        (is_delta ? info.delta_stored : info.full_stored) += piece.stored_bytes;
      }
    }
  return info;
}

StoreResult<std::uint64_t> write_manifest(const File& patch, const Manifest& manifest,
                                          std::uint64_t manifest_offset) {
  const std::string plain = pack(manifest);
  std::string packed(ZSTD_compressBound(plain.size()), '\0');
  const std::size_t n =
      ZSTD_compress(packed.data(), packed.size(), plain.data(), plain.size(), kZstdLevel);
  if (ZSTD_isError(n)) return StoreStatus{{Code::kInternal, "zstd failed"}, patch.path()};
  packed.resize(n);
  std::string header(kPatchHeaderBytes, '\0');
  const std::uint64_t numbers[] = {kVersion, manifest_offset, packed.size(), plain.size()};
  std::memcpy(header.data(), kMagic, 8);
  std::memcpy(header.data() + 8, numbers, sizeof numbers);
  const std::string hash = hash_of(std::string_view(header).substr(0, kHashOffset), packed);
  std::memcpy(header.data() + kHashOffset, hash.data(), kHashDigits);
  if (StoreStatus s = patch.write_at(manifest_offset, packed.data(), packed.size()); !s.ok())
    return s;
  if (StoreStatus s = patch.write_at(0, header.data(), header.size()); !s.ok()) return s;
  return manifest_offset + packed.size();
}

StoreResult<Manifest> read_manifest(const File& patch) {
  std::string header(kPatchHeaderBytes, '\0');
  if (patch.num_bytes() < kPatchHeaderBytes)
    return StoreStatus{{Code::kBadMagic, "not a Snug patch: too short"}, patch.path()};
  if (StoreStatus s = patch.read_at(0, header.data(), header.size()); !s.ok()) return s;
  if (std::memcmp(header.data(), kMagic, 8) != 0)
    return StoreStatus{{Code::kBadMagic, "not a Snug patch"}, patch.path()};
  std::uint64_t numbers[4];
  std::memcpy(numbers, header.data() + 8, sizeof numbers);
  const auto [version, offset, packed_bytes, plain_bytes] = numbers;
  if (version != kVersion)
    return failure(Code::kUnsupportedVersion, "patch version not known to this Snug; update it",
                   patch.path(), std::to_string(version));
  if (offset < kPatchHeaderBytes || offset > patch.num_bytes() ||
      packed_bytes != patch.num_bytes() - offset)
    return bad(patch, "patch cut short, or longer than it says");
  if (plain_bytes > kSmallManifestBytes && plain_bytes / kMaxManifestRatio > packed_bytes)
    return bad(patch, "manifest of impossible size");
  std::string packed(packed_bytes, '\0');
  if (StoreStatus s = patch.read_at(offset, packed.data(), packed.size()); !s.ok()) return s;
  if (hash_of(std::string_view(header).substr(0, kHashOffset), packed) !=
      std::string_view(header).substr(kHashOffset, kHashDigits))
    return bad(patch, "manifest damaged: hash does not match");
  std::string plain(plain_bytes, '\0');
  const std::size_t n = ZSTD_decompress(plain.data(), plain.size(), packed.data(), packed.size());
  Manifest manifest;
  if (ZSTD_isError(n) || n != plain.size() || !unpack(plain, manifest) || !names_are_good(manifest))
    return bad(patch, "manifest is not valid");
  std::uint64_t end = kPatchHeaderBytes;
  for (const PatchFile& file : manifest.files)
    for (const Piece& piece : file.pieces) end += piece.stored_bytes;
  if (end != offset) return bad(patch, "pieces do not fill the patch");
  return manifest;
}

bool is_safe_name(std::string_view name) noexcept {
  if (name.empty() || name.find('\0') != std::string_view::npos) return false;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t slash = std::min(name.find('/', at), name.size());
    const std::string_view part = name.substr(at, slash - at);
    if (part.empty() || part == "." || part == "..") return false;
    at = slash + 1;
  }
  return true;
}

}  // namespace snug::store
