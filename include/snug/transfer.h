// snug/transfer.h - files, folders and versions of a model from host to host.
//
// Safetensors files are sent tensor by tensor, each chunk in the encoding that is fastest on this
// link (snug/wire.h); other files under zstd where that helps. Received data has a temporary name
// until it is complete, verified and on disk. An interrupted transfer resumes where it stopped:
// chunks that the receiver already has are compared by hash and not sent again.
//
// Trust:   received names never lead out of the folder given, links are not followed, and nothing
//          is allocated or written before its size was checked.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "snug/store.h"
#include "snug/wire.h"

namespace snug {

struct TransferOptions {
  wire::Options wire;
  bool force = false;  // receiver: replace existing files, but none that the sender lacks
  // Sender: attempts in a row to reconnect without having sent anything new.
  int num_retries = 5;
  // Called on any thread, one call at a time. Returning false cancels the transfer.
  std::function<bool(const Progress&)> progress;
};

struct TransferReport {
  std::string name;  // of the file or folder; at the receiver its path
  // Receiver with `force`: where the older folder is now if it held other files too.
  std::string kept = {};
  std::uint64_t num_files = 0;
  std::uint64_t raw_bytes = 0;  // size of all files
  double seconds = 0;
  int num_attempts = 1;
  wire::Stats stats;  // summed over the attempts
};

// Sends a file or a folder to the receiver at `address`. Returns when the receiver has it under
// its final name.
StoreResult<TransferReport> send_path(const std::string& path, const std::string& address,
                                      const TransferOptions& options = {}) noexcept;

// Receives the file or folder that one peer sends into `folder`, which must exist.
StoreResult<TransferReport> receive_path(wire::Connection& connection, const std::string& folder,
                                         const TransferOptions& options = {}) noexcept;

// Calls `serve` for every peer that connects, each on a thread of its own, until keep_going returns
// false, and then waits for these threads. `on_error` gets what `serve` returns, with the name of
// the peer, and from time to time the number of refused connections. Threads call it concurrently.
void serve_peers(wire::Listener& listener,
                 const std::function<StoreStatus(wire::Connection&)>& serve,
                 const std::function<void(const StoreStatus&)>& on_error,
                 const std::function<bool()>& keep_going) noexcept;

// ---- versions ---------------------------------------------------------------
//
// A trainer publishes versions: files or folders that it renames into one folder. Followers always
// fetch the newest. A follower whose version the server still has gets a patch (snug/store.h), any
// other a full copy. A version is verified against the hash of the original before it appears.

struct SyncEvent {
  std::string version;  // its name
  std::string peer;
  bool is_patch = false;
  std::uint64_t raw_bytes = 0;   // size of the version
  std::uint64_t wire_bytes = 0;  // transmitted for this update
  double seconds = 0;
};

struct SyncOptions {
  wire::Options wire;
  int num_kept = 2;     // follower: versions to keep; older ones that it fetched are deleted
  bool once = false;    // follower: return after the version that is newest now has arrived
  int num_retries = 5;  // follower with `once`: attempts in a row to connect
  // Called from any thread, one call at a time.
  std::function<void(const SyncEvent&)> on_event;
  std::function<void(const StoreStatus&)> on_error;  // an error from which the call recovers
  std::function<bool()> keep_going;                  // called often; false ends the call
};

// Serves the versions in `folder` until keep_going returns false. The newest is the one that
// appeared last; among those that appeared while no server ran, the last by name, where numbers
// compare as numbers. The order is kept in `folder`/.snug-serve. Names that start with a dot are
// ignored. An entry that cannot be a version is reported to on_error once.
StoreStatus serve_versions(wire::Listener& listener, const std::string& folder,
                           const SyncOptions& options) noexcept;

// Keeps `folder` at the newest version of the server; the symbolic link `current` points to it.
// Reconnects after a lost connection. Returns errors that a retry cannot fix, such as a full disk.
StoreStatus follow_versions(const std::string& address, const std::string& folder,
                            const SyncOptions& options) noexcept;

}  // namespace snug
