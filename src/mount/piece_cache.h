// mount/piece_cache.h - decoded pieces of files in a bounded number of bytes, and the threads that
// decode them.
//
// A piece is what is decoded at once: one block of a large tensor, or several small tensors.
// However many readers wait for a piece, it is decoded once. What readers wait for is decoded
// before what is read ahead.
#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "codec/block.h"
#include "snug/store.h"
#include "store/workers.h"

namespace snug::mount {

// Most pieces have this size, that of the blocks that Snug writes.
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{256} << 10;

struct Piece {
  std::size_t file = 0;
  std::uint64_t offset = 0;  // in the plain file
  std::uint64_t num_bytes = 0;

  std::uint64_t end() const noexcept { return offset + num_bytes; }
};

// What a decoding thread owns.
struct Scratch {
  codec::Workspace workspace;
  store::Buffer payload;
};

class PieceSource {
 public:
  virtual ~PieceSource() = default;
  // Decodes one piece, or two neighbours, which takes less time than one after the other. Piece i
  // goes to dst[i]. Called by several threads at once.
  virtual StoreStatus decode(std::span<const Piece> pieces, std::span<std::byte* const> dst,
                             Scratch& scratch) const = 0;
};

class PieceCache {
 private:
  struct Entry;

 public:
  struct Counters {
    std::uint64_t num_decoded = 0;  // pieces
    std::uint64_t num_bytes = 0;    // held now
    std::uint64_t max_bytes = 0;    // held at most
  };

  // Holds at most `capacity` bytes, and more only where readers use more than that at one moment.
  // What the threads work with is not counted: a buffer and a Scratch each.
  PieceCache(const PieceSource& source, std::uint64_t capacity, int num_threads);
  ~PieceCache();
  PieceCache(const PieceCache&) = delete;
  PieceCache& operator=(const PieceCache&) = delete;

  // Decoded pieces, which stay in memory as long as this object.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&&) noexcept = default;
    Hold& operator=(Hold&&) = delete;
    ~Hold();

    std::size_t size() const noexcept { return entries_.size(); }
    std::span<const std::byte> bytes(std::size_t idx) const noexcept;
    // Tells that the kernel has got `num_bytes` of a piece. It keeps what it was given, so a piece
    // that it has got all of is the first to go.
    void delivered(std::size_t idx, std::uint64_t num_bytes) { delivered_[idx] += num_bytes; }

   private:
    friend class PieceCache;
    PieceCache* cache_ = nullptr;
    std::vector<std::shared_ptr<Entry>> entries_;
    std::vector<std::uint64_t> delivered_;
  };

  // Waits until all of `pieces` are decoded. If one cannot be, it goes to `failed`.
  StoreResult<Hold> get(std::span<const Piece> pieces, Piece* failed = nullptr);
  // Lets pieces be decoded that nobody waits for yet. They take up half of the capacity at most;
  // those that nobody asked for since are dropped, oldest first.
  void read_ahead(std::span<const Piece> pieces);

  Counters counters() const;

 private:
  enum class State { kQueued, kDecoding, kReady, kFailed };
  using List = std::list<Entry*>;
  using Queue = std::deque<std::shared_ptr<Entry>>;
  // One piece or two neighbours.
  struct Job {
    std::array<std::shared_ptr<Entry>, 2> entries;
    std::size_t size = 0;
  };
  struct Key {
    std::size_t file;
    std::uint64_t offset;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept {
      return std::hash<std::uint64_t>()((key.offset ^ key.file << 48) * 0x9E3779B97F4A7C15u);
    }
  };

  // All of these are called with the mutex held. Those that only readers call may throw
  // std::bad_alloc and change nothing then.
  std::shared_ptr<Entry> find(const Piece& piece) noexcept;
  std::shared_ptr<Entry> add(const Piece& piece, Queue& queue);
  Job take_job() noexcept;
  void pin(Entry& entry) noexcept;
  void unpin(Entry& entry) noexcept;
  void enlist(Entry& entry) noexcept;
  void not_ahead(Entry& entry) noexcept;
  void unlist(Entry& entry) noexcept;
  void make_room(std::uint64_t num_bytes) noexcept;
  void allocate(Entry& entry) noexcept;
  void remove(Entry& entry) noexcept;

  void work(Scratch& scratch) noexcept;
  void run_job(const Job& job, Scratch& scratch) noexcept;

  const PieceSource& source_;
  const std::uint64_t capacity_;
  const std::size_t num_threads_;
  mutable std::mutex mutex_;
  std::condition_variable has_work_;
  bool stopping_ = false;
  std::unordered_map<Key, std::shared_ptr<Entry>, KeyHash> entries_;
  Queue wanted_, ahead_;  // to decode
  // Ready and not in use: given to readers completely, in part, and not at all.
  List spent_, partial_, unread_;
  std::vector<std::unique_ptr<std::byte[]>> free_buffers_;  // of kPieceBytes
  std::uint64_t ahead_bytes_ = 0;
  Counters counters_;
  std::vector<std::unique_ptr<Scratch>> scratches_;  // of the threads
  std::vector<std::thread> threads_;
};

}  // namespace snug::mount
