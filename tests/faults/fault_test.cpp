// System calls and allocations that fail, one at a time, in every command that handles files.
//
// Each job runs the tool again and again; the first, second, third, ... call of one kind fails,
// until the job no longer gets that far. Whatever fails:
//   - the tool ends by itself, with one line of an error, and without a "defect in Snug"
//   - exit code 0 means that the result is right
//   - otherwise the final name has nothing, what it had before, or the whole result
//   - the inputs are unchanged, and no temporary file is left
// Without SNUG_FAULT_ALL in the environment, the numbers grow faster and faster.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace snug::test {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;
using Tree = std::map<std::string, std::string>;  // path to content; folders are empty

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

// Of a file or folder; empty if there is none.
Tree tree_of(const fs::path& path) {
  Tree tree;
  if (fs::is_regular_file(path)) tree[""] = content_of(path);
  if (fs::is_directory(path)) {
    tree[""];
    for (const auto& entry : fs::recursive_directory_iterator(path))
      tree[entry.path().lexically_relative(path).string()] =
          entry.is_regular_file() ? content_of(entry.path()) : "";
  }
  return tree;
}

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}
std::string tool() { return variable("SNUG_CLI", SNUG_CLI_PATH); }
std::string preload() { return variable("SNUG_FAULT_PRELOAD", SNUG_FAULT_PRELOAD); }

struct Outcome {
  int code = -1;  // minus the signal
  bool reached = false;
  std::string error;
};

// A folder in memory, where fsync costs nothing.
class Workshop {
 public:
  Workshop() {
    std::string name = (fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string()) +
                       "/snug-faults-XXXXXX";
    root_ = ::mkdtemp(name.data());
  }
  ~Workshop() { fs::remove_all(root_); }
  fs::path operator/(const std::string& name) const { return root_ / name; }

  // Runs the tool in this folder, its output in the files `stdout` and `stderr`.
  Outcome run(const Arguments& arguments, const std::string& fault = {}) const {
    int report[2];
    EXPECT_EQ(::pipe(report), 0);
    const std::string path = root_.string();
    Arguments words = {tool()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    Arguments variables = {"SNUG_FAULT=" + fault, "SNUG_FAULT_FD=" + std::to_string(report[1])};
    if (!fault.empty()) variables.push_back("LD_PRELOAD=" + preload());
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addchdir_np(&actions, path.c_str());
    for (const auto& [fd, name] : {std::pair{1, "stdout"}, std::pair{2, "stderr"}})
      ::posix_spawn_file_actions_addopen(&actions, fd, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t child = -1;
    const int spawned = ::posix_spawn(&child, tool().c_str(), &actions, nullptr,
                                      pointers(words).data(), pointers(variables).data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(report[1]);
    Outcome outcome;
    int status = 0;
    if (spawned == 0 && ::waitpid(child, &status, 0) == child)
      outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    char byte;
    outcome.reached = ::read(report[0], &byte, 1) == 1;
    ::close(report[0]);
    outcome.error = content_of(root_ / "stderr");
    return outcome;
  }

 private:
  static std::vector<char*> pointers(const Arguments& texts) {
    std::vector<char*> result;
    for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
    result.push_back(nullptr);
    return result;
  }
  fs::path root_;
};

struct Job {
  friend void PrintTo(const Job& job, std::ostream* out) { *out << job.name; }

  std::string name;
  Arguments arguments;
  std::string output;  // written by the tool; "stdout" may be cut short by an error
  bool force = false;  // the output is there before
  bool fails = false;  // even without a fault
  // The folder iterators of libstdc++ 12 abort if there is no memory: that leaves a temporary file,
  // but no half result.
  bool lists_folders = false;
};

std::string number(int error) { return std::to_string(error); }

std::vector<std::pair<std::string, std::string>> all_faults() {
  return {{"open", number(EMFILE)},
          {"open", number(EINTR)},
          {"read", number(EIO)},
          {"read", number(EINTR)},
          {"read", "short"},
          {"write", number(ENOSPC)},
          {"write", number(EINTR)},
          {"write", "short"},
          {"sync", number(EIO)},
          {"rename", number(EIO)},
          {"rename", number(EINVAL)},
          {"mmap", number(ENOMEM)},
          {"truncate", number(ENOSPC)},
          {"truncate", number(EOPNOTSUPP)},
          {"close", number(EIO)},
          {"malloc", number(ENOMEM)}};
}

class Faults : public testing::TestWithParam<Job> {
 protected:
  void SetUp() override {
    run_plain({"sample", "base.safetensors", "--size", "200kB"});
    run_plain({"sample", "next.safetensors", "--size", "200kB", "--seed", "2"});
    run_plain({"compress", "base.safetensors", "packed.safetensors"});
    run_plain({"diff", "base.safetensors", "next.safetensors", "-o", "patch"});
    std::string broken = content_of(work_ / "packed.safetensors");
    broken[broken.size() / 2] ^= 1;
    write_file(work_ / "broken.safetensors", broken);
    fs::create_directory(work_ / "folder");
    for (const char* name : {"a.safetensors", "b.safetensors"})
      fs::copy_file(work_ / "base.safetensors", work_ / "folder" / name);
    write_file(work_ / "folder" / "config.json", "{}");
    run_plain({"compress", "folder", "folder.snug"});
    inputs_ = inputs();
    const Job& job = GetParam();
    const Outcome outcome = work_.run(job.arguments);
    ASSERT_EQ(outcome.code != 0, job.fails) << outcome.error;
    expected_ = job.output.empty() ? Tree{} : tree_of(work_ / job.output);
    if (job.force) {  // something else of the same kind
      fs::remove_all(work_ / job.output);
      if (fs::is_directory(work_ / job.arguments[1])) {
        fs::create_directory(work_ / job.output);
        fs::copy_file(work_ / "packed.safetensors", work_ / job.output / "a.safetensors");
      } else {
        fs::copy_file(work_ / "base.safetensors", work_ / job.output);
      }
      before_ = tree_of(work_ / job.output);
    }
  }

  void run_plain(const Arguments& arguments) {
    const Outcome outcome = work_.run(arguments);
    ASSERT_EQ(outcome.code, 0) << outcome.error;
  }

  // Everything but what jobs write.
  Tree inputs() const {
    Tree tree;
    for (const auto& [path, content] : tree_of(work_ / ""))
      if (!path.starts_with("result") && !path.starts_with("std")) tree[path] = content;
    return tree;
  }

  void restore_output() const {
    const Job& job = GetParam();
    if (job.output.empty() || job.output == "stdout") return;
    const fs::path path = work_ / job.output;
    if (tree_of(path) == before_) return;
    fs::remove_all(path);
    if (before_.empty()) return;
    if (before_.size() == 1) return write_file(path, before_.at(""));
    fs::create_directory(path);
    for (const auto& [name, content] : before_)
      if (!name.empty()) write_file(path / name, content);
  }

  bool applies(const Tree& patch) {  // a patch that differs may still be right
    write_file(work_ / "result.other", patch.at(""));
    const Outcome outcome =
        work_.run({"patch", "base.safetensors", "result.other", "-o", "result.next"});
    const bool right =
        outcome.code == 0 && tree_of(work_ / "result.next") == tree_of(work_ / "next.safetensors");
    fs::remove(work_ / "result.other");
    fs::remove(work_ / "result.next");
    return right;
  }

  void check(const Outcome& outcome, const std::string& call) {
    const Job& job = GetParam();
    const bool memory = call == "malloc";
    const bool may_abort = memory && job.lists_folders && outcome.code == -SIGABRT;
    EXPECT_TRUE(outcome.code >= 0 || may_abort) << "killed by a signal";
    if (outcome.code == 10) {
      EXPECT_TRUE(memory && outcome.error.find("memory") != std::string::npos) << outcome.error;
    }
    if (outcome.code != 0 && call != "write" && !may_abort) {  // which may be that of the message
      EXPECT_TRUE(outcome.error.starts_with("snug: ") && outcome.error.ends_with("\n"))
          << outcome.error;
    }
    if (job.fails) {
      EXPECT_NE(outcome.code, 0);
    }
    if (!job.output.empty()) {
      const Tree now = tree_of(work_ / job.output);
      const bool right =
          now == expected_ || (job.name.starts_with("diff") && !now.empty() && applies(now));
      const bool untouched = now == before_ || job.output == "stdout";
      EXPECT_TRUE(right || (outcome.code != 0 && untouched))
          << "exit code " << outcome.code << ", output of " << now.size() << " files is wrong";
    }
    restore_output();
    EXPECT_TRUE(inputs() == inputs_) << "inputs changed, or a temporary file is left";
    for (const auto& entry : fs::directory_iterator(work_ / "")) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("result") || name == job.output) continue;
      // --force keeps an old folder that it could not look at again, and says so.
      const bool told = outcome.error.find(name) != std::string::npos;
      EXPECT_TRUE(told || may_abort) << "left behind: " << name;
      fs::remove_all(entry.path());
    }
  }

  Workshop work_;
  Tree inputs_, expected_, before_;
};

TEST_P(Faults, NothingIsHalfDone) {
  const bool all = std::getenv("SNUG_FAULT_ALL") != nullptr;
  long num_runs = 0;
  for (const auto& [call, how] : all_faults()) {
    for (long n = 1;; n += all ? 1 : n) {
      const std::string fault = call + ":" + std::to_string(n) + ":" + how;
      const Outcome outcome = work_.run(GetParam().arguments, fault);
      ++num_runs;
      SCOPED_TRACE(fault + ": exit code " + std::to_string(outcome.code) + ", " + outcome.error);
      check(outcome, call);
      if (!outcome.reached || HasFatalFailure()) break;
    }
  }
  RecordProperty("runs", static_cast<int>(num_runs));
}

const Job kJobs[] = {
    {"compress", {"compress", "base.safetensors", "result"}, "result"},
    {"compress_force", {"compress", "base.safetensors", "result", "--force"}, "result", true},
    {"compress_threads", {"compress", "base.safetensors", "result", "-t", "4"}, "result"},
    {"compress_folder", {"compress", "folder", "result"}, "result", false, false, true},
    {"compress_folder_force",
     {"compress", "folder", "result", "--force"},
     "result",
     true,
     false,
     true},
    {"decompress", {"decompress", "packed.safetensors", "result"}, "result"},
    {"decompress_folder", {"decompress", "folder.snug", "result"}, "result", false, false, true},
    {"verify", {"verify", "packed.safetensors"}, ""},
    {"verify_broken", {"verify", "broken.safetensors"}, "", false, true},
    {"inspect", {"inspect", "packed.safetensors", "--html", "result"}, "result"},
    {"cat", {"cat", "packed.safetensors", "model.embed_tokens.weight"}, "stdout"},
    {"diff", {"diff", "base.safetensors", "next.safetensors", "-o", "result"}, "result"},
    {"diff_of_compressed",
     {"diff", "packed.safetensors", "next.safetensors", "-o", "result"},
     "result"},
    {"patch", {"patch", "base.safetensors", "patch", "-o", "result"}, "result"},
};
INSTANTIATE_TEST_SUITE_P(Jobs, Faults, testing::ValuesIn(kJobs),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace snug::test
