#include "store/patch_format.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "store/file_hash.h"

namespace snug::store {
namespace {

constexpr char kMagic[] = "SNUGPTCH";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHashDigits = 32;
constexpr std::size_t kHashOffset = 64;  // of the header: 32 hexadecimal digits
constexpr int kZstdLevel = 6;
constexpr std::size_t kMaxNameBytes = 4096;

// The least that one entry takes: a file has two lengths, a size and a hash, a piece three numbers.
constexpr std::uint64_t kFileEntryBytes = 3 + kHashDigits, kFolderEntryBytes = 2, kPieceBytes = 3;

void append_text(std::string& bytes, const std::string& value) {
  append_number(bytes, value.size());
  bytes += value;
}

// Every read says false once the bytes are used up.
class ManifestReader {
 public:
  explicit ManifestReader(std::string_view bytes) : bytes_(bytes) {}

  bool number(std::uint64_t& value) { return take_number(bytes_, value); }
  bool text(std::string& value, std::size_t max_bytes) {
    std::uint64_t n;
    if (!number(n) || n > max_bytes || n > bytes_.size()) return false;
    value = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return true;
  }
  // How many of something follow, each of at least `entry_bytes`: no more than can follow.
  bool count(std::uint64_t& n, std::uint64_t entry_bytes) {
    return number(n) && n <= bytes_.size() / entry_bytes;
  }
  // The same for what has an entry of its own in memory.
  bool entries(std::uint64_t& n, std::uint64_t entry_bytes) {
    if (!count(n, entry_bytes) || n > kMaxManifestEntries - num_entries_) return false;
    num_entries_ += n;
    return true;
  }
  std::string_view& rest() noexcept { return bytes_; }
  bool at_end() const noexcept { return bytes_.empty(); }

 private:
  std::string_view bytes_;
  std::uint64_t num_entries_ = 0;
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

void append_file_entry(std::string& bytes, const PatchFile& file) {
  append_text(bytes, file.name);
  append_number(bytes, file.num_bytes);
  append_text(bytes, file.hash);
}

bool read_file_entry(ManifestReader& in, PatchFile& file) {
  return in.text(file.name, kMaxNameBytes) && in.number(file.num_bytes) &&
         in.text(file.hash, kHashDigits) && file.hash.size() == kHashDigits;
}

bool is_good_piece(const Manifest& manifest, const Piece& piece) {
  if (piece.num_bytes == 0) return false;
  if (piece.kind <= PieceKind::kDelta) {
    if (piece.base_file >= manifest.base.size()) return false;
    const std::uint64_t limit = manifest.base[piece.base_file].num_bytes;
    if (piece.base_offset > limit || piece.num_bytes > limit - piece.base_offset) return false;
  }
  // No piece is worth storing if it takes more than this.
  return piece.kind == PieceKind::kCopy ||
         (piece.num_bytes <= kMaxPieceBytes && piece.stored_bytes <= 2 * kMaxPieceBytes);
}

bool read_pieces(ManifestReader& in, const Manifest& manifest, PatchFile& file) {
  std::uint64_t num_pieces, at = 0, stored = 0;
  if (!in.count(num_pieces, kPieceBytes)) return false;
  const std::string_view start = in.rest();
  for (std::uint64_t i = 0; i < num_pieces; ++i) {
    Piece piece;
    if (!take_piece(in.rest(), piece) || !is_good_piece(manifest, piece) ||
        piece.num_bytes > file.num_bytes - at)
      return false;
    at += piece.num_bytes;
    stored += piece.stored_bytes;
  }
  file.pieces = {start.substr(0, start.size() - in.rest().size()), num_pieces, stored};
  return at == file.num_bytes;
}

// The manifest, unpacked, if it has the hash that the header says.
StoreResult<std::string> read_plain_manifest(const File& patch, std::string_view header,
                                             std::uint64_t packed_bytes,
                                             std::uint64_t plain_bytes) {
  if (plain_bytes > kMaxManifestBytes || packed_bytes > ZSTD_compressBound(kMaxManifestBytes))
    return bad(patch, "manifest of impossible size");
  std::string packed(packed_bytes, '\0');
  if (StoreStatus s = patch.read_at(patch.num_bytes() - packed_bytes, packed.data(), packed.size());
      !s.ok())
    return s;
  if (hash_of(header.substr(0, kHashOffset), packed) != header.substr(kHashOffset, kHashDigits))
    return bad(patch, "manifest damaged: hash does not match");
  std::string plain(plain_bytes, '\0');
  const std::size_t n = ZSTD_decompress(plain.data(), plain.size(), packed.data(), packed.size());
  if (ZSTD_isError(n) || n != plain.size()) return bad(patch, "manifest is not valid");
  return plain;
}

// Names that are safe and in order, so that none is there twice.
template <class List, class NameOf>
bool in_order(const List& list, NameOf name_of) {
  for (std::size_t i = 0; i < list.size(); ++i)
    if (!is_safe_name(name_of(list[i])) || (i > 0 && name_of(list[i - 1]) >= name_of(list[i])))
      return false;
  return true;
}

bool names_are_good(const Manifest& manifest) {
  if (!manifest.is_folder)
    return manifest.base.size() == 1 && manifest.files.size() == 1 &&
           manifest.sub_folders.empty() && manifest.base[0].name.empty() &&
           manifest.files[0].name.empty();
  const auto& folders = manifest.sub_folders;
  const auto is_folder = [&](const std::string& name) {
    return std::binary_search(folders.begin(), folders.end(), name);
  };
  const auto has_parent = [&](const std::string& name) {
    const std::size_t slash = name.rfind('/');
    return slash == std::string::npos || is_folder(name.substr(0, slash));
  };
  const auto name_of = [](const PatchFile& file) -> const std::string& { return file.name; };
  return in_order(folders, [](const std::string& name) -> const std::string& { return name; }) &&
         in_order(manifest.base, name_of) && in_order(manifest.files, name_of) &&
         std::all_of(folders.begin(), folders.end(), has_parent) &&
         std::all_of(manifest.files.begin(), manifest.files.end(), [&](const PatchFile& file) {
           return has_parent(file.name) && !is_folder(file.name);
         });
}

}  // namespace

std::string pack(const Manifest& manifest) {
  std::string out;
  append_number(out, manifest.is_folder);
  append_number(out, manifest.num_changed);
  append_number(out, manifest.base.size());
  for (const PatchFile& file : manifest.base) append_file_entry(out, file);
  append_number(out, manifest.sub_folders.size());
  for (const std::string& name : manifest.sub_folders) append_text(out, name);
  append_number(out, manifest.files.size());
  for (const PatchFile& file : manifest.files) {
    append_file_entry(out, file);
    append_number(out, file.pieces.size());
    out += file.pieces.packed();
  }
  return out;
}

bool unpack(std::string_view bytes, Manifest& manifest) {
  ManifestReader in(bytes);
  std::uint64_t is_folder, num_base, num_folders, num_files;
  if (!in.number(is_folder) || is_folder > 1 || !in.number(manifest.num_changed)) return false;
  manifest.is_folder = is_folder == 1;
  if (!in.entries(num_base, kFileEntryBytes)) return false;
  manifest.base.resize(num_base);
  for (PatchFile& file : manifest.base)
    if (!read_file_entry(in, file)) return false;
  if (!in.entries(num_folders, kFolderEntryBytes)) return false;
  manifest.sub_folders.resize(num_folders);
  for (std::string& name : manifest.sub_folders)
    if (!in.text(name, kMaxNameBytes)) return false;
  if (!in.entries(num_files, kFileEntryBytes + 1)) return false;
  manifest.files.resize(num_files);
  for (PatchFile& file : manifest.files)
    if (!read_file_entry(in, file) || !read_pieces(in, manifest, file)) return false;
  return in.at_end() && names_are_good(manifest);
}

std::uint64_t Manifest::target_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const PatchFile& file : files) sum += file.num_bytes;
  return sum;
}

std::string version_of_files(const std::vector<PatchFile>& files, bool is_folder) {
  if (!is_folder) return files.empty() ? std::string() : files[0].hash;
  FileHash hash;
  for (const PatchFile& file : files) {
    // A name may hold anything but a zero byte, so its length comes first.
    const std::string entry = std::to_string(file.name.size()) + " " + file.name + "\n" +
                              std::to_string(file.num_bytes) + "\n" + file.hash + "\n";
    hash.update(entry.data(), entry.size());
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
  Piece piece;
  for (const PatchFile& file : manifest.files)
    for (PieceCursor cursor(file.pieces); cursor.next(piece);) {
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
  if (plain.size() > kMaxManifestBytes ||
      manifest.base.size() + manifest.sub_folders.size() + manifest.files.size() >
          kMaxManifestEntries)
    return StoreStatus{{Code::kUsage, "too much for one patch; make one for each file or folder"},
                       patch.path()};
  std::string packed(ZSTD_compressBound(plain.size()), '\0');
  const std::size_t n =
      ZSTD_compress(packed.data(), packed.size(), plain.data(), plain.size(), kZstdLevel);
  if (ZSTD_isError(n)) return StoreStatus{{Code::kInternal, ZSTD_getErrorName(n)}, patch.path()};
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
  Manifest manifest;
  {
    const auto plain = read_plain_manifest(patch, header, packed_bytes, plain_bytes);
    if (!plain) return plain.status();
    if (!unpack(*plain, manifest)) return bad(patch, "manifest is not valid");
  }
  std::uint64_t end = kPatchHeaderBytes;
  for (const PatchFile& file : manifest.files) end += file.pieces.stored_bytes();
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
