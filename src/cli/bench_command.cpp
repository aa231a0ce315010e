// snug bench: this machine's rates on this file, next to memcpy and zstd.
#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "snug/codec.h"
#include "snug/store.h"

namespace snug::cli {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::size_t kCopyChunk = std::size_t{256} << 10;
constexpr std::size_t kZstdPiece = std::size_t{1} << 20;

struct BenchArgs {
  std::string file, limit = "256MiB";
  int num_runs = 5, num_threads = 0;
  bool json = false;
};

struct BenchTensor {
  DType dtype = DType::kBytes;
  std::size_t offset = 0, num_bytes = 0;  // in BenchData::raw
};

struct BenchData {
  Bytes raw;
  std::vector<BenchTensor> tensors;
};

struct BenchRow {
  std::string name;
  double ratio = 1;
  double seconds[2][2] = {};  // [compress, decompress][one thread, all threads]
};

double median_seconds(int num_runs, const std::function<bool()>& body) {
  std::vector<double> seconds;
  for (int i = 0; i < num_runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (!body()) return 0;
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(seconds.begin(),
                   seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2),
                   seconds.end());
  return seconds[seconds.size() / 2];
}

// Runs body(piece) for all pieces; each thread takes an equal, contiguous share.
void for_pieces(std::size_t num_pieces, int num_threads,
                const std::function<void(std::size_t)>& body) {
  const auto n = static_cast<std::size_t>(num_threads);
  const auto run = [&](std::size_t t) {
    for (std::size_t i = num_pieces * t / n; i < num_pieces * (t + 1) / n; ++i) body(i);
  };
  std::vector<std::jthread> threads;  // which are joined even if not all of them can be made
  for (std::size_t t = 1; t < n; ++t) threads.emplace_back(run, t);
  run(0);
}

BenchRow bench_memcpy(const BenchData& data, const int (&threads)[2], int num_runs) {
  BenchRow row{"memcpy", 1, {}};
  Bytes copy(data.raw.size());
  for (int t = 0; t < 2; ++t) {
    row.seconds[0][t] = median_seconds(num_runs, [&] {
      for_pieces((data.raw.size() + kCopyChunk - 1) / kCopyChunk, threads[t], [&](std::size_t i) {
        const std::size_t at = i * kCopyChunk;
        std::memcpy(copy.data() + at, data.raw.data() + at,
                    std::min(kCopyChunk, data.raw.size() - at));
      });
      return true;
    });
    row.seconds[1][t] = row.seconds[0][t];
  }
  return row;
}

BenchRow bench_zstd(const BenchData& data, const int (&threads)[2], int num_runs) {
  BenchRow row{"zstd -1", 1, {}};
  const std::size_t num_pieces = (data.raw.size() + kZstdPiece - 1) / kZstdPiece;
  const std::size_t bound = ZSTD_compressBound(kZstdPiece);
  Bytes packed(num_pieces * bound), restored(data.raw.size());
  std::vector<std::size_t> sizes(num_pieces);
  const auto piece = [&](std::size_t i) {
    return std::min(kZstdPiece, data.raw.size() - i * kZstdPiece);
  };
  for (int t = 0; t < 2; ++t) {
    row.seconds[0][t] = median_seconds(num_runs, [&] {
      for_pieces(num_pieces, threads[t], [&](std::size_t i) {
        sizes[i] = ZSTD_compress(packed.data() + i * bound, bound, data.raw.data() + i * kZstdPiece,
                                 piece(i), 1);
      });
      return true;
    });
    row.seconds[1][t] = median_seconds(num_runs, [&] {
      for_pieces(num_pieces, threads[t], [&](std::size_t i) {
        ZSTD_decompress(restored.data() + i * kZstdPiece, piece(i), packed.data() + i * bound,
                        sizes[i]);
      });
      return true;
    });
  }
  std::size_t total = 0;
  for (const std::size_t size : sizes) total += size;
  row.ratio = static_cast<double>(total) / static_cast<double>(data.raw.size());
  return row;
}

// Each tensor is one frame, as in a compressed file.
StoreResult<BenchRow> bench_codec(const BenchData& data, Codec codec, const int (&threads)[2],
                                  int num_runs) {
  BenchRow row{std::string("snug ") + codec_name(codec), 1, {}};
  std::vector<std::size_t> offsets, sizes(data.tensors.size());
  std::size_t room = 0;
  for (const BenchTensor& tensor : data.tensors) {
    offsets.push_back(room);
    room += encode_bound(tensor.num_bytes, {.dtype = tensor.dtype});
  }
  Bytes frames(room), restored(data.raw.size());
  Status error;
  for (int t = 0; t < 2; ++t) {
    row.seconds[0][t] = median_seconds(num_runs, [&] {
      for (std::size_t i = 0; i < data.tensors.size(); ++i) {
        const BenchTensor& tensor = data.tensors[i];
        const auto size =
            encode(std::span(data.raw).subspan(tensor.offset, tensor.num_bytes),
                   std::span(frames).subspan(offsets[i]),
                   {.dtype = tensor.dtype, .codec = codec, .num_threads = threads[t]});
        if (!size) return error = size.status(), false;
        sizes[i] = *size;
      }
      return true;
    });
    row.seconds[1][t] = median_seconds(num_runs, [&] {
      for (std::size_t i = 0; i < data.tensors.size(); ++i) {
        const BenchTensor& tensor = data.tensors[i];
        const auto size =
            decode(std::span(frames).subspan(offsets[i], sizes[i]),
                   std::span(restored).subspan(tensor.offset, tensor.num_bytes), threads[t]);
        if (!size) return error = size.status(), false;
      }
      return true;
    });
  }
  if (!error.ok()) return StoreStatus{error, {}, {}, {}};
  if (restored != data.raw)
    return StoreStatus{{Code::kInternal, "decoded bytes differ from the input"}, {}, {}, {}};
  std::size_t total = 0;
  for (const std::size_t size : sizes) total += size;
  row.ratio = static_cast<double>(total) / static_cast<double>(data.raw.size());
  return row;
}

// Tensors in file order up to the limit, the last one cut to fit.
StoreResult<BenchData> load(const Reader& reader, std::uint64_t limit) {
  BenchData data;
  std::uint64_t total = 0;
  for (const TensorEntry& tensor : reader.tensors()) {
    std::uint64_t n = std::min(tensor.raw_bytes, limit - total);
    n -= n % elem_bytes(tensor.kind);
    if (n == 0) continue;
    data.tensors.push_back(
        {tensor.kind, static_cast<std::size_t>(total), static_cast<std::size_t>(n)});
    data.raw.resize(static_cast<std::size_t>(total + n));
    StoreStatus s = reader.read_bytes(
        tensor, 0, std::span(data.raw).subspan(static_cast<std::size_t>(total)), 0);
    if (!s.ok()) return s;
    total += n;
  }
  if (total == 0)
    return StoreStatus{{Code::kUsage, "no data to measure on"}, reader.path(), {}, {}};
  return data;
}

std::string to_text(const BenchArgs& args, const BenchData& data, const std::vector<BenchRow>& rows,
                    const int (&threads)[2]) {
  std::string text = fmt::format(
      "{}: {} in {} tensor{}, {}, {}\n\n", printable(args.file), format_bytes(data.raw.size()),
      data.tensors.size(), data.tensors.size() == 1 ? "" : "s", simd_target(),
      args.num_runs == 1 ? "one run" : fmt::format("medians of {} runs", args.num_runs));
  const std::string many = fmt::format("{} threads", threads[1]);
  text +=
      fmt::format("{:<14}{:>9}{:>10}{:>24}{:>24}\n", "", "ratio", "size", "compress", "decompress");
  text += fmt::format("{:<14}{:>9}{:>10}{:>12}{:>12}{:>12}{:>12}\n", "", "", "", "1 thread", many,
                      "1 thread", many);
  for (const BenchRow& row : rows) {
    text += fmt::format(
        "{:<14}{:>9}{:>10}", row.name, format_percent(row.ratio, 2),
        format_bytes(static_cast<std::uint64_t>(row.ratio * static_cast<double>(data.raw.size()))));
    for (const auto& direction : row.seconds)
      for (const double seconds : direction)
        text += fmt::format("{:>12}", format_rate(data.raw.size(), seconds));
    text += "\n";
  }
  return text +
         "\nRates count original bytes. memcpy works in chunks of 256 KiB, zstd in pieces of 1 "
         "MiB.\n";
}

std::string to_json(const BenchArgs& args, const BenchData& data, const std::vector<BenchRow>& rows,
                    const int (&threads)[2]) {
  Json list = Json::array();
  const auto rate = [&](double s) {
    return s > 0 ? static_cast<double>(data.raw.size()) / s : 0.0;
  };
  for (const BenchRow& row : rows)
    list.push_back(
        {{"name", row.name},
         {"ratio", row.ratio},
         {"compress_bytes_per_s", {rate(row.seconds[0][0]), rate(row.seconds[0][1])}},
         {"decompress_bytes_per_s", {rate(row.seconds[1][0]), rate(row.seconds[1][1])}}});
  const Json all = {{"file", args.file},  {"raw_bytes", data.raw.size()}, {"simd", simd_target()},
                    {"threads", threads}, {"runs", args.num_runs},        {"results", list}};
  return json_text(all) + "\n";
}

int run_bench(const BenchArgs& args) try {
  end_on_signals();  // one call of a codec may take seconds, and nothing is written
  const std::uint64_t limit = parse_bytes(args.limit);
  if (limit == 0)
    return print_error(Code::kUsage, "--limit wants a number like 256MiB, not " + args.limit);
  const auto reader = Reader::open(args.file);
  if (!reader) return print_error(reader.status());
  const auto data = load(*reader, limit);
  if (!data) return print_error(data.status());
  const int all = args.num_threads > 0
                      ? args.num_threads
                      : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int threads[2] = {1, all};
  std::vector<BenchRow> rows = {bench_memcpy(*data, threads, args.num_runs)};
  for (const Codec codec : {Codec::kEntropy, Codec::kFixed}) {
    auto row = bench_codec(*data, codec, threads, args.num_runs);
    if (!row) return print_error(row.status());
    rows.push_back(std::move(*row));
  }
  rows.push_back(bench_zstd(*data, threads, args.num_runs));
  return print_stdout(args.json ? to_json(args, *data, rows, threads)
                                : to_text(args, *data, rows, threads));
} catch (const std::system_error& e) {
  return print_error({{Code::kIo, "cannot start a thread; use fewer"}, {}, {}, e.code().message()});
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto* cmd =
      app.add_subcommand("bench", "Measure this machine on this file, next to memcpy and zstd");
  auto args = std::make_shared<BenchArgs>();
  cmd->add_option("FILE", args->file, "A plain or compressed safetensors file")->required();
  cmd->add_option("--limit", args->limit, "Measure at most this much of the file")
      ->type_name("SIZE")
      ->capture_default_str();
  cmd->add_option("--runs", args->num_runs, "Number of runs; the median is reported")
      ->check(CLI::Range(1, 1000).description(""))
      ->type_name("N")
      ->capture_default_str();
  cmd->add_option("-t,--threads", args->num_threads,
                  "Threads to compare with one thread; 0: one per CPU")
      ->check(CLI::Range(0, 256).description(""))
      ->type_name("N")
      ->capture_default_str();
  cmd->add_flag("--json", args->json, "Print the result as JSON");
  cmd->footer(
      "Measures in memory, not the disk.\n\nExample:\n  snug bench "
      "model.safetensors\n");
  cmd->callback([args, &exit_code] { exit_code = run_bench(*args); });
}

}  // namespace snug::cli
