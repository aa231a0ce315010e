// store/file_jobs.h - compress, restore and verify one file.
#pragma once
#include <string>

#include "store/block_scan.h"
#include "store/output.h"
#include "store/tensor_file.h"

namespace snug::store {

enum class FileJob { kCompress, kRestore, kVerify };

// Passes over the data that a job makes, for its progress.
inline int num_passes(FileJob job) noexcept { return job == FileJob::kCompress ? 2 : 1; }

// Writes `in`, a plain file, compressed to `path`. The layout of `in` is gone afterwards: its
// memory is needed for that of the output, which is read back. `in_folder`: see OutputFile.
StoreResult<FileReport> compress_file(TensorFile& in, const std::string& path, bool in_folder,
                                      const StoreOptions& options, ProgressMeter& meter);

// Writes the original of `in`, a compressed file, to `path`.
StoreResult<FileReport> restore_file(const TensorFile& in, const std::string& path, bool in_folder,
                                     const StoreOptions& options, ProgressMeter& meter);

// Restores `in` in memory and compares it with the recorded hash.
StoreResult<FileReport> verify_file(const TensorFile& in, const StoreOptions& options,
                                    ProgressMeter& meter);

// One of the above; kVerify does not use `path`.
StoreResult<FileReport> run_job(FileJob job, TensorFile& in, const std::string& path,
                                bool in_folder, const StoreOptions& options, ProgressMeter& meter);

}  // namespace snug::store
