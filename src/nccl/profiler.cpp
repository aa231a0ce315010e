// The profiler table: NCCL calls it on the thread that launches its kernels, right before and after
// each launch. There, and nowhere else, the plugin launches codec workers.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "nccl/chunk_codec.h"
#include "nccl/launch_rule.h"
#include "nccl/log.h"
#include "nccl/profiler_abi.h"
#include "nccl/settings.h"
#include "nccl/worker_desk.h"
#include "nccl/worker_library.h"

namespace snug::nccl {
namespace {

constexpr std::size_t kFrameMemory = 64 << 20;

std::mutex setup_mutex;
bool is_set_up = false;
// Null: no workers. Never null again once it is set, because launches may be under way.
std::atomic<const WorkerLibrary*> library{nullptr};
std::atomic<bool> is_stopped{false};  // no more launches
LaunchRule launch_rule;

void say_no_workers(const char* reason) { info("chunks are compressed on the CPU: %s", reason); }

// Beside the plugin itself, or beside the link through which NCCL found it: some installers link
// every file on its own.
std::string path_beside_plugin() {
  Dl_info self{};
  if (::dladdr(reinterpret_cast<void*>(&path_beside_plugin), &self) == 0) return "";
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(self.dli_fname, nullptr), std::free);
  std::string path;
  for (const std::string plugin : {real != nullptr ? real.get() : self.dli_fname, self.dli_fname}) {
    path = plugin.substr(0, plugin.rfind('/') + 1) + kWorkerLibraryFile;
    if (::access(path.c_str(), F_OK) == 0) break;
  }
  return path;
}

// Where the settings say, if they do.
const WorkerLibrary* load_library(const std::string& setting) {
  const std::string path = setting.empty() ? path_beside_plugin() : setting;
  if (::access(path.c_str(), F_OK) != 0)
    return say_no_workers((path + " is not there (it needs nvcc to build)").c_str()), nullptr;
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) return say_no_workers(::dlerror()), nullptr;
  const auto* loaded = static_cast<const WorkerLibrary*>(::dlsym(handle, kWorkerLibrarySymbol));
  if (loaded == nullptr || loaded->version != kWorkerLibraryVersion)
    return say_no_workers((path + " belongs to another version of Snug").c_str()), nullptr;
  return loaded;
}

void set_up() {
  const Settings settings = read_settings();
  if (settings.codec == CodecChoice::kOff) return;
  if (settings.num_sms == 0) return say_no_workers("SNUG_NCCL_SMS is 0");
  if (!settings.inner.empty())
    return say_no_workers("GPU workers do not work for a stacked plugin yet");
  const WorkerLibrary* loaded = load_library(settings.worker_library);
  if (loaded == nullptr) return;
  const std::size_t frame_bytes = (chunk_frame_bound(settings.chunk_bytes) + 4095) / 4096 * 4096;
  WorkerBoard* board = nullptr;
  std::byte* frames = nullptr;
  if (const char* reason = loaded->open(settings.num_sms, kFrameMemory, &board, &frames))
    return say_no_workers(reason);
  WorkerDesk::instance().open(board, {frames, kFrameMemory}, frame_bytes);
  library.store(loaded);
  info("chunks are compressed on the GPU, by workers on %d SMs", settings.num_sms);
}

ncclResult_t init(void** context, std::uint64_t, int* mask, const char*, int, int, int,
                  ncclDebugLogger_t log) noexcept {
  *context = nullptr;
  *mask = 0;
  try {
    set_logger(log);
    const std::lock_guard lock(setup_mutex);
    WorkerDesk::instance().set_profiler_loaded();
    if (!is_set_up) set_up();
    is_set_up = true;
    const WorkerLibrary* loaded = library.load();
    if (loaded != nullptr && !is_stopped && !loaded->is_same_device()) {
      WorkerDesk::instance().stop();
      is_stopped = true;
      say_no_workers("this process uses several GPUs");
    }
    if (loaded != nullptr && !is_stopped)
      *mask = ncclProfileCollApi | ncclProfileP2pApi | ncclProfileKernelLaunch;
  } catch (const std::exception& error) {
    warn("no GPU workers: %s", error.what());
  }
  return ncclSuccess;
}

std::size_t bytes_of(const char* datatype) {
  if (datatype == nullptr) return 1;
  if (std::strstr(datatype, "64") != nullptr) return 8;
  if (std::strstr(datatype, "32") != nullptr) return 4;
  return std::strstr(datatype, "16") != nullptr ? 2 : 1;
}

// The handle of a launch with workers is its stream, plus one: stream 0 has a handle, too.
void* handle_of(void* stream) { return static_cast<char*>(stream) + 1; }
void* stream_of(void* handle) { return static_cast<char*>(handle) - 1; }

ncclResult_t start_event(void*, void** handle, ncclProfilerEventDescr_v5_t* event) noexcept {
  *handle = nullptr;
  const WorkerLibrary* loaded = library.load(std::memory_order_acquire);
  if (loaded == nullptr || is_stopped.load(std::memory_order_relaxed)) return ncclSuccess;
  try {
    if (event->type == ncclProfileCollApi)
      launch_rule.called(event->collApi.count * bytes_of(event->collApi.datatype));
    if (event->type == ncclProfileP2pApi)
      launch_rule.called(event->p2pApi.count * bytes_of(event->p2pApi.datatype));
    if (event->type != ncclProfileKernelLaunch) return ncclSuccess;
    WorkerDesk& desk = WorkerDesk::instance();
    if (!launch_rule.is_worth_it(desk.totals()->orders)) return ncclSuccess;
    desk.check_regions(loaded->can_reach);
    if (loaded->before_kernel(event->kernelLaunch.stream))
      *handle = handle_of(event->kernelLaunch.stream);
  } catch (const std::exception& error) {
    warn("no GPU workers for this operation: %s", error.what());
  }
  return ncclSuccess;
}

ncclResult_t stop_event(void* handle) noexcept {
  if (handle != nullptr) library.load()->after_kernel(stream_of(handle));
  return ncclSuccess;
}

ncclResult_t record_event_state(void*, int, void*) noexcept { return ncclSuccess; }
ncclResult_t finalize(void*) noexcept { return ncclSuccess; }

}  // namespace
}  // namespace snug::nccl

using namespace snug::nccl;

extern "C" __attribute__((visibility("default"))) const ncclProfiler_v5_t ncclProfiler_v5 = {
    "Snug", init, start_event, stop_event, record_event_state, finalize};
