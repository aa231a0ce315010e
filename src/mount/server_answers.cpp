// What the kernel asks for, and the answers.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "mount/request.h"
#include "mount/server.h"

namespace snug::mount {
namespace {

constexpr std::uint32_t kMaxReadBytes = std::uint32_t{1} << 20;
constexpr std::uint32_t kMaxWriteBytes = 4096;      // nothing is written; the kernel wants a page
constexpr std::uint32_t kMaxBackground = 64;        // requests that the kernel makes ahead
constexpr std::uint64_t kValidSeconds = 24 * 3600;  // what is shown does not change

fuse_attr to_attr(const struct stat& info, std::uint64_t number) {
  fuse_attr attr = {};
  attr.ino = number;
  attr.size = static_cast<std::uint64_t>(info.st_size);
  attr.blocks = (attr.size + 511) / 512;
  attr.atime = attr.mtime = static_cast<std::uint64_t>(info.st_mtim.tv_sec);
  attr.ctime = attr.mtime;
  attr.atimensec = attr.mtimensec = static_cast<std::uint32_t>(info.st_mtim.tv_nsec);
  attr.ctimensec = attr.mtimensec;
  attr.mode = static_cast<std::uint32_t>(info.st_mode) & ~0222u;
  attr.nlink = S_ISDIR(info.st_mode) ? 2 : 1;
  attr.uid = info.st_uid;
  attr.gid = info.st_gid;
  attr.blksize = static_cast<std::uint32_t>(kPieceBytes);
  return attr;
}

}  // namespace

void Server::init(const Request& request) {
  const auto* in = request.as<fuse_init_in>(16);  // older kernels send no more of it
  if (in == nullptr || in->major < 7 || (in->major == 7 && in->minor < 23))
    return reply_error(request, EPROTO);
  fuse_init_out out = {};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = FUSE_KERNEL_MINOR_VERSION;
  if (in->major > FUSE_KERNEL_VERSION) return reply(request, &out, sizeof out);  // asks again
  out.flags = in->flags & (FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES);
  out.max_readahead = kMaxReadBytes;
  out.max_background = kMaxBackground;
  out.congestion_threshold = kMaxBackground * 3 / 4;
  out.max_write = kMaxWriteBytes;
  out.time_gran = 1;
  out.max_pages = static_cast<std::uint16_t>(kMaxReadBytes / ::sysconf(_SC_PAGESIZE));
  reply(request, &out, sizeof out);
}

void Server::lookup(const Request& request) {
  const MountTree::Node* folder = tree_->node(request.header->nodeid);
  if (folder == nullptr || request.body.empty()) return reply_error(request, ENOENT);
  const auto* text = reinterpret_cast<const char*>(request.body.data());
  fuse_entry_out out = {};
  out.nodeid = tree_->find(*folder, {text, ::strnlen(text, request.body.size())});
  out.entry_valid = out.attr_valid = kValidSeconds;
  // Number 0 lets the kernel remember that there is no such name.
  if (out.nodeid != 0) out.attr = to_attr(tree_->node(out.nodeid)->attributes, out.nodeid);
  reply(request, &out, sizeof out);
}

void Server::get_attributes(const Request& request) {
  const MountTree::Node* node = tree_->node(request.header->nodeid);
  if (node == nullptr) return reply_error(request, ENOENT);
  fuse_attr_out out = {};
  out.attr_valid = kValidSeconds;
  out.attr = to_attr(node->attributes, request.header->nodeid);
  reply(request, &out, sizeof out);
}

void Server::open_file(const Request& request) {
  const MountTree::Node* node = tree_->node(request.header->nodeid);
  if (node == nullptr) return reply_error(request, ENOENT);
  if (node->file != nullptr)
    if (const StoreStatus s = node->file->check_unchanged(); !s.ok()) {
      reply_error(request, EIO);
      return log(name_of(request.header->nodeid), s);
    }
  fuse_open_out out = {};
  out.open_flags = FOPEN_KEEP_CACHE | (node->file == nullptr ? FOPEN_CACHE_DIR : 0);
  reply(request, &out, sizeof out);
}

void Server::read_folder(const Request& request) {
  const MountTree::Node* node = tree_->node(request.header->nodeid);
  const auto* in = request.as<fuse_read_in>();
  if (node == nullptr || in == nullptr) return reply_error(request, EINVAL);
  std::vector<std::byte> out;
  for (std::uint64_t i = in->offset; i < node->children.size() + 2; ++i) {
    const std::uint64_t number = i == 0   ? request.header->nodeid
                                 : i == 1 ? node->parent
                                          : node->children[i - 2];
    const MountTree::Node& child = *tree_->node(number);
    const std::string name = i == 0 ? "." : i == 1 ? ".." : child.name;
    const std::size_t num_bytes = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + name.size());
    if (out.size() + num_bytes > in->size) break;
    out.resize(out.size() + num_bytes);
    fuse_dirent entry = {};
    entry.ino = number;
    entry.off = i + 1;
    entry.namelen = static_cast<std::uint32_t>(name.size());
    entry.type = static_cast<std::uint32_t>(child.attributes.st_mode & S_IFMT) >> 12;
    std::byte* to = out.data() + (out.size() - num_bytes);
    std::memcpy(to, &entry, FUSE_NAME_OFFSET);
    std::memcpy(to + FUSE_NAME_OFFSET, name.data(), name.size());
  }
  reply(request, out.data(), out.size());
}

void Server::statistics(const Request& request) {
  fuse_statfs_out out = {};
  out.st.bsize = out.st.frsize = 4096;
  out.st.blocks = (tree_->num_bytes() + 4095) / 4096;
  out.st.files = tree_->num_nodes();
  out.st.namelen = 255;
  reply(request, &out, sizeof out);
}

// ---- content ----------------------------------------------------------------

void Server::read_file(const Request& request, std::vector<std::byte>& content) {
  const MountTree::Node* node = tree_->node(request.header->nodeid);
  const auto* in = request.as<fuse_read_in>();
  if (node == nullptr || node->file == nullptr || in == nullptr)
    return reply_error(request, EINVAL);
  const MountedFile& file = *node->file;
  const std::uint64_t offset = std::min(in->offset, file.num_bytes());
  // Less than what is asked for means the end of the file to the kernel, and nothing else may.
  const std::uint64_t num_bytes = std::min<std::uint64_t>(in->size, file.num_bytes() - offset);
  if (num_bytes == 0) return reply(request, nullptr, 0);
  if (file.has_pieces()) return read_pieces(request, file, offset, num_bytes);
  content.resize(static_cast<std::size_t>(num_bytes));
  if (const StoreStatus s = file.read_other(offset, content); !s.ok()) {
    reply_error(request, EIO);
    return log(name_of(request.header->nodeid), s);
  }
  reply(request, content.data(), content.size());
}

void Server::read_pieces(const Request& request, const MountedFile& file, std::uint64_t offset,
                         std::uint64_t num_bytes) {
  const std::uint64_t end = offset + num_bytes;
  std::vector<Piece> pieces;
  Piece failed{.offset = offset, .num_bytes = num_bytes};  // all of it, unless one is to blame
  StoreStatus status;
  for (std::uint64_t at = offset; at < end && status.ok();) {
    const auto piece = file.piece_at(at);
    status = piece.status();
    if (!piece) break;
    pieces.push_back(*piece);
    at = piece->end();
  }
  if (status.ok()) read_ahead(file, offset, end);
  StoreResult<PieceCache::Hold> hold =
      status.ok() ? cache_->get(pieces, &failed) : StoreResult<PieceCache::Hold>(status);
  if (!hold) {
    reply_error(request, EIO);
    return log(name_of(request.header->nodeid) + ": bytes " + std::to_string(failed.offset) +
                   " to " + std::to_string(failed.end() - 1),
               hold.status());
  }
  std::vector<struct iovec> parts;
  parts.reserve(pieces.size() + 1);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::uint64_t from = std::max(offset, pieces[i].offset),
                        to = std::min(end, pieces[i].end());
    parts.push_back(to_iovec(hold->bytes(i).data() + (from - pieces[i].offset),
                             static_cast<std::size_t>(to - from)));
    hold->delivered(i, to - from);
  }
  reply(request, std::move(parts));
}

void Server::read_ahead(const MountedFile& file, std::uint64_t begin, std::uint64_t end) {
  // As many readers as are told apart fit into the half of the cache that is for this.
  const std::uint64_t window = std::clamp<std::uint64_t>(
      options_.cache_bytes / 2 / ReadAhead::kMaxStreams, 2 * kPieceBytes, 32 * kPieceBytes);
  const ReadAhead::Range range = file.read_ahead().next(begin, end, window);
  std::vector<Piece> pieces;
  for (std::uint64_t at = range.begin; at < std::min(range.end, file.num_bytes());) {
    const auto piece = file.piece_at(at);
    if (!piece) break;  // who asks for it will be told
    pieces.push_back(*piece);
    at = piece->end();
  }
  if (!pieces.empty()) cache_->read_ahead(pieces);
}

}  // namespace snug::mount
