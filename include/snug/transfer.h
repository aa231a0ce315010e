// snug/transfer.h - files, folders and versions of a model from host to host.
//
// Safetensors files travel tensor by tensor, each chunk in the encoding that is
// fastest on this link (snug/wire.h); other files under zstd where that helps.
// What arrives lies under a temporary name until it is complete, verified and
// on disk. A transfer that broke off goes on where it stopped: chunks that the
// receiver has already are compared by hash and not sent again.
//
// Trust:   received names never leave the folder given, links are not followed,
//          and nothing is allocated or written before its size was checked.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "snug/store.h"
#include "snug/wire.h"

namespace snug {

struct TransferOptions {
  wire::Options wire;
  bool force = false;  // receiver: replace what is there
  // Sender: how often to come back in a row without having sent anything new
  // after the connection broke.
  int num_retries = 5;
  // Called now and then, one call at a time. Returning false stops the work.
  std::function<bool(const Progress&)> progress;
};

struct TransferReport {
  std::string name;  // of the file or folder; at the receiver its path
  std::uint64_t num_files = 0;
  std::uint64_t raw_bytes = 0;  // size of all files
  double seconds = 0;
  int num_attempts = 1;
  wire::Stats stats;  // summed over the attempts
};

// Sends a file or a folder to whoever receives at `address`. Returns when the
// receiver has it under its final name.
StoreResult<TransferReport> send_path(const std::string& path, const std::string& address,
                                      const TransferOptions& options = {}) noexcept;

// Receives what one peer sends into `folder`, which must be there.
StoreResult<TransferReport> receive_path(wire::Connection& connection, const std::string& folder,
                                         const TransferOptions& options = {}) noexcept;

// Calls `serve` for every peer that connects, each on a thread of its own, until keep_going returns
// false, and then waits for these threads. `on_error` gets what `serve` returns, with the name of
// the peer, and now and then how many connections were refused. Threads call it at the same time.
void serve_peers(wire::Listener& listener,
                 const std::function<StoreStatus(wire::Connection&)>& serve,
                 const std::function<void(const StoreStatus&)>& on_error,
                 const std::function<bool()>& keep_going) noexcept;

// ---- versions ---------------------------------------------------------------
//
// A trainer publishes versions: files or folders that appear in a folder by a
// rename. Followers always move on to the newest one. Who has a version that the
// server still has gets a patch (snug/store.h), everybody else a full copy. A
// version is verified against the hash of the original before it appears.

struct SyncEvent {
  std::string version;  // its name
  std::string peer;
  bool is_patch = false;
  std::uint64_t raw_bytes = 0;   // size of the version
  std::uint64_t wire_bytes = 0;  // what this update took
  double seconds = 0;
};

struct SyncOptions {
  wire::Options wire;
  int num_kept = 2;     // follower: versions to keep; older ones that it fetched go
  bool once = false;    // follower: return when what is newest now is there
  int num_retries = 5;  // follower with `once`: attempts in a row
  // Called from any thread, one call at a time.
  std::function<void(const SyncEvent&)> on_event;
  std::function<void(const StoreStatus&)> on_error;  // that was survived
  std::function<bool()> keep_going;                  // asked often; false ends the call
};

// Serves the versions in `folder` until keep_going says no. The one that appeared
// last is the newest; of those that appeared while nobody served, the last by name,
// numbers counting as numbers. The order is kept in `folder`/.snug-serve. Names that
// start with a dot are not versions; what cannot be one goes to on_error, once.
StoreStatus serve_versions(wire::Listener& listener, const std::string& folder,
                           const SyncOptions& options) noexcept;

// Keeps `folder` at the newest version of the server; the link `current` points
// to it. Comes back after a lost connection; ends with what it cannot mend, such
// as a full disk.
StoreStatus follow_versions(const std::string& address, const std::string& folder,
                            const SyncOptions& options) noexcept;

}  // namespace snug
