// One compressed file back to the plain file, or only checked.
#include "store/file_hash.h"
#include "store/file_jobs.h"

namespace snug::store {
namespace {

// Hashes the plain content and, if there is an output, writes it.
StoreStatus restore(const TensorFile& in, const File* out, const StoreOptions& options,
                    ProgressMeter& meter) {
  if (StoreStatus s = in.check_kind(true); !s.ok()) return s;
  const Layout& plain = in.plain();
  FileHash hash;
  if (StoreStatus s = in.visit_header([&](std::uint64_t at, std::span<const std::byte> piece) {
        hash.update(piece.data(), piece.size());
        return out != nullptr ? out->write_at(at, piece.data(), piece.size()) : StoreStatus{};
      });
      !s.ok())
    return s;
  const Visit visit = [&](const Chunk& chunk, codec::Turnstile& turn,
                          codec::Workspace&) -> StoreStatus {
    std::uint64_t pos;
    if (!turn.wait_for(chunk.ticket, pos)) return {};
    hash.update(chunk.raw.data(), chunk.raw.size());
    turn.pass(pos + chunk.raw.size());
    if (out == nullptr) return {};
    const std::uint64_t at =
        plain.data_start + plain.slots.begin_of(chunk.tensor_idx) + chunk.offset;
    if (StoreStatus s = out->write_at(at, chunk.raw.data(), chunk.raw.size()); !s.ok()) return s;
    out->start_writeback(at, at + chunk.raw.size());
    return {};
  };
  if (StoreStatus s = scan_tensors(in, options.num_threads, 0, meter, visit); !s.ok()) return s;
  if (hash.hex() == in.recorded_hash()) return {};
  return {{Code::kCorrupt, "restored bytes differ from the original: hash does not match"},
          in.path()};
}

FileReport report_on(const TensorFile& in, const std::string& name) {
  return {name, in.plain().slots.size(), in.plain().file_bytes, in.file().num_bytes()};
}

}  // namespace

StoreResult<FileReport> restore_file(const TensorFile& in, const std::string& path, bool in_folder,
                                     const StoreOptions& options, ProgressMeter& meter) {
  auto output = OutputFile::create(path, options.force, in_folder);
  if (!output) return output.status();
  const File& out = output->file();
  meter.set_phase("restoring");
  if (StoreStatus s = out.reserve(in.plain().file_bytes); !s.ok()) return s;
  if (StoreStatus s = restore(in, &out, options, meter); !s.ok()) return s;
  out.copy_attributes(in.file());
  if (StoreStatus s = output->sync(); !s.ok()) return s;
  if (StoreStatus s = output->commit(); !s.ok()) return s;
  return report_on(in, path);
}

StoreResult<FileReport> verify_file(const TensorFile& in, const StoreOptions& options,
                                    ProgressMeter& meter) {
  if (StoreStatus s = restore(in, nullptr, options, meter); !s.ok()) return s;
  return report_on(in, in.path());
}

StoreResult<FileReport> run_job(FileJob job, TensorFile& in, const std::string& path,
                                bool in_folder, const StoreOptions& options, ProgressMeter& meter) {
  switch (job) {
    case FileJob::kCompress: return compress_file(in, path, in_folder, options, meter);
    case FileJob::kRestore: return restore_file(in, path, in_folder, options, meter);
    default: meter.set_phase("verifying"); return verify_file(in, options, meter);
  }
}

}  // namespace snug::store
