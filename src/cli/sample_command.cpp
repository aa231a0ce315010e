// snug sample: a synthetic model with the statistics of a trained one.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "cli/commands.h"
#include "cli/new_file.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "snug/store.h"

namespace snug::cli {
namespace {

struct SampleArgs {
  std::string out, size = "64MiB";
  std::uint64_t seed = 1;
  bool force = false;
};

// splitmix64 and the polar form of Box and Muller: equal values on all machines whose log
// and sqrt round alike.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  double gauss() {
    if (has_spare_) return (has_spare_ = false, spare_);
    double x, y, s;
    do {
      x = uniform();
      y = uniform();
      s = x * x + y * y;
    } while (s >= 1 || s == 0);
    const double scale = std::sqrt(-2 * std::log(s) / s);
    spare_ = y * scale;
    has_spare_ = true;
    return x * scale;
  }

 private:
  double uniform() {  // in (-1, 1)
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return static_cast<double>(static_cast<std::int64_t>(z)) * 0x1p-63;
  }
  std::uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

enum class Fill { kWeights, kNorm, kInverseFrequency };

struct SampleTensor {
  std::string name;
  bool is_f32 = false;
  std::vector<std::uint64_t> shape;
  Fill fill = Fill::kWeights;

  std::uint64_t num_elems() const {
    std::uint64_t n = 1;
    for (const auto dim : shape) n *= dim;
    return n;
  }
  std::uint64_t num_bytes() const { return num_elems() * (is_f32 ? 4 : 2); }
};

// A Llama-like model of about `num_bytes`: ten layers, width to match.
std::vector<SampleTensor> design_model(std::uint64_t num_bytes) {
  const double params = static_cast<double>(num_bytes) / 2;
  const std::uint64_t width =
      std::max<std::uint64_t>(
          1, static_cast<std::uint64_t>(std::lround(std::sqrt(params / 128) / 64))) *
      64;
  const std::uint64_t ffn = width * 11 / 4, kv = width / 4, vocab = width * 16;
  const double layer = 10.75 * static_cast<double>(width) * static_cast<double>(width);
  const auto num_layers =
      std::max<long>(1, std::lround((params - static_cast<double>(vocab * width)) / layer));
  std::vector<SampleTensor> model = {
      {"model.rotary_emb.inv_freq", true, {32}, Fill::kInverseFrequency},
      {"value_head.weight", true, {16, width}, Fill::kWeights},
      {"model.embed_tokens.weight", false, {vocab, width}, Fill::kWeights},
  };
  for (long i = 0; i < num_layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    model.push_back({at + "input_layernorm.weight", false, {width}, Fill::kNorm});
    model.push_back({at + "mlp.down_proj.weight", false, {width, ffn}, Fill::kWeights});
    model.push_back({at + "mlp.gate_proj.weight", false, {ffn, width}, Fill::kWeights});
    model.push_back({at + "mlp.up_proj.weight", false, {ffn, width}, Fill::kWeights});
    model.push_back({at + "post_attention_layernorm.weight", false, {width}, Fill::kNorm});
    model.push_back({at + "self_attn.k_proj.weight", false, {kv, width}, Fill::kWeights});
    model.push_back({at + "self_attn.o_proj.weight", false, {width, width}, Fill::kWeights});
    model.push_back({at + "self_attn.q_proj.weight", false, {width, width}, Fill::kWeights});
    model.push_back({at + "self_attn.v_proj.weight", false, {kv, width}, Fill::kWeights});
  }
  model.push_back({"model.norm.weight", false, {width}, Fill::kNorm});
  return model;
}

std::string header_of(const std::vector<SampleTensor>& model) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t at = 0;
  for (const SampleTensor& tensor : model) {
    json += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        tensor.name, tensor.is_f32 ? "F32" : "BF16", fmt::join(tensor.shape, ","),
                        at, at + tensor.num_bytes());
    at += tensor.num_bytes();
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = json.size();
  std::string header(8, '\0');
  std::memcpy(header.data(), &length, 8);
  return header + json;
}

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// One row; its scale is lognormal, as the rows of trained matrices differ.
void fill_row(const SampleTensor& tensor, std::uint64_t num_values, Random& random,
              std::vector<char>& row) {
  const std::size_t width = tensor.is_f32 ? 4 : 2;
  row.resize(num_values * width);
  const double scale = 0.02 * std::exp(0.25 * random.gauss());
  for (std::uint64_t i = 0; i < num_values; ++i) {
    double value = scale * random.gauss();
    if (tensor.fill == Fill::kNorm) value = 1 + 0.1 * random.gauss();
    if (tensor.fill == Fill::kInverseFrequency)
      value = std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(num_values));
    const auto narrow = static_cast<float>(value);
    const std::uint16_t bf16 = to_bf16(narrow);
    std::memcpy(row.data() + i * width, tensor.is_f32 ? static_cast<const void*>(&narrow) : &bf16,
                width);
  }
}

// Ends early if the file cannot be written, or a signal comes.
void write_model(NewFile& file, const std::vector<SampleTensor>& model, std::uint64_t total,
                 const SampleArgs& args) {
  const std::string header = header_of(model);
  file.write(header.data(), header.size());
  Random random(args.seed);
  ProgressBar bar(args.out);
  std::vector<char> row;
  std::uint64_t done = 0;
  for (const SampleTensor& tensor : model) {
    const std::uint64_t num_rows = tensor.shape.size() > 1 ? tensor.shape[0] : 1;
    for (std::uint64_t i = 0; i < num_rows; ++i) {
      fill_row(tensor, tensor.num_elems() / num_rows, random, row);
      if (!file.write(row.data(), row.size())) return;
      done += row.size();
      if (!bar.update({done, total, "making"})) return;
    }
  }
}

int run_sample(const SampleArgs& args) {
  const std::uint64_t size = parse_bytes(args.size);
  if (size < 1000)
    return print_error(Code::kUsage, "--size wants a number like 64MiB, not " + args.size);
  const std::vector<SampleTensor> model = design_model(size);
  std::uint64_t total = 0;
  for (const SampleTensor& tensor : model) total += tensor.num_bytes();
  auto file = NewFile::create(args.out, args.force);
  if (!file) return print_error(file.status());
  write_model(*file, model, total, args);
  if (pending_signal() != 0) return print_error(StoreStatus{});
  if (StoreStatus s = file->commit(); !s.ok()) return print_error(s);
  return print_stdout(
      fmt::format("{}  {}  {} tensors\n", printable(args.out), format_bytes(total), model.size()));
}

}  // namespace

void add_sample(CLI::App& app, int& exit_code) {
  auto* cmd =
      app.add_subcommand("sample", "Write a synthetic model with realistic values, for trials");
  auto args = std::make_shared<SampleArgs>();
  cmd->add_option("OUT", args->out, "The safetensors file to write")->required();
  cmd->add_option("--size", args->size, "Approximate size: 64MiB, 1GB, ...")
      ->type_name("SIZE")
      ->capture_default_str();
  cmd->add_option("--seed", args->seed, "Random seed")->type_name("N")->capture_default_str();
  cmd->add_flag("-f,--force", args->force, "Replace an existing file");
  cmd->footer(
      "Llama-like names and shapes; BF16 Gaussian weights whose rows have lognormal\n"
      "scales, norms near 1, and two F32 tensors.\n\n"
      "Example:\n  snug sample demo.safetensors --size 256MiB\n");
  cmd->callback([args, &exit_code] { exit_code = run_sample(*args); });
}

}  // namespace snug::cli
