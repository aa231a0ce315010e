// Where tokens come from: made, given by the environment, or the secret of a user that both sides
// find.
#include "wire/user_secret.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "wire/wire_pairs.h"

namespace snug::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

wire::Options with(const std::string& token) {
  wire::Options options;
  options.token = token;
  options.timeout = 5s;
  return options;
}

// Only what make_token made is known to be random: hex digits alone may be the hash of a word.
TEST(Token, ThatSnugMade) {
  const std::string token = *wire::make_token();
  EXPECT_TRUE(wire::is_random_token(token)) << token;
  EXPECT_NE(token, *wire::make_token());
  EXPECT_FALSE(wire::is_random_token(token.substr(5)));
  EXPECT_FALSE(wire::is_random_token(token + "0"));
  EXPECT_FALSE(wire::is_random_token("snug-" + std::string(64, 'g')));
  auto listener = wire::Listener::open("127.0.0.1:0", with(token));
  EXPECT_TRUE(wire::connect(listener->address(), with(token)).ok());
  EXPECT_TRUE(listener->accept(10s).ok());
  std::string other = token;
  other.back() = other.back() == '0' ? '1' : '0';
  for (const std::string& wrong : {token.substr(5), other}) {
    const Status s = wire::connect(listener->address(), with(wrong)).status();
    EXPECT_EQ(s.code, Code::kPeer);
    EXPECT_NE(std::string(s.what).find("another token"), std::string::npos) << s.what;
  }
}

class UserSecret : public testing::Test {
 protected:
  UserSecret() {
    char name[] = "/tmp/snug-secret-XXXXXX";
    folder_ = ::mkdtemp(name);
    const char* old = std::getenv("XDG_CONFIG_HOME");
    old_ = old == nullptr ? "" : old;
    ::setenv("XDG_CONFIG_HOME", folder_.c_str(), 1);
  }
  ~UserSecret() override {
    if (old_.empty())
      ::unsetenv("XDG_CONFIG_HOME");
    else
      ::setenv("XDG_CONFIG_HOME", old_.c_str(), 1);
    fs::remove_all(folder_);
  }
  fs::path file() const { return folder_ / "snug" / "secret"; }

  fs::path folder_;
  std::string old_;
};

TEST_F(UserSecret, IsMadeOnceAndPrivate) {
  const auto first = wire::user_secret(), second = wire::user_secret();
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(wire::is_random_token(*first));
  EXPECT_EQ(*first, *second);
  struct stat info;
  ASSERT_EQ(::stat(file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(fs::directory_iterator(file().parent_path()), {}), 1);
}

TEST_F(UserSecret, WhatOthersCouldReadIsRefused) {
  ASSERT_TRUE(wire::user_secret().ok());
  fs::permissions(file(), fs::perms::others_read, fs::perm_options::add);
  EXPECT_EQ(wire::user_secret().status().code, Code::kUsage);
  fs::remove(file());
  std::ofstream(file()) << "short";
  ::chmod(file().c_str(), 0600);
  EXPECT_EQ(wire::user_secret().status().code, Code::kUsage);
  fs::remove(file());
  fs::create_symlink("/dev/zero", file());
  EXPECT_FALSE(wire::user_secret().ok());
}

// What follows a secret, as the newline of an editor, was no part of it for these either.
TEST_F(UserSecret, OfEarlierVersions) {
  const auto secret_of = [&](const std::string& text) {
    fs::remove(file());
    std::ofstream(file()) << text;
    ::chmod(file().c_str(), 0600);
    return wire::user_secret();
  };
  const std::string random = *wire::user_secret(), earlier(64, 'a');
  for (const std::string end : {"", "\n", "\r\n", "and more"}) {
    EXPECT_EQ(*secret_of(earlier + end), earlier);
    EXPECT_EQ(*secret_of(random + end), random);
  }
  for (const std::string& damaged : {random.substr(0, 67), std::string(70, '\0'),
                                     std::string(63, 'a') + "z", std::string(63, 'a')})
    EXPECT_EQ(secret_of(damaged).status().code, Code::kUsage);
}

TEST_F(UserSecret, AFolderThatCannotBeMade) {
  std::ofstream(folder_ / "snug") << "a file";
  EXPECT_EQ(wire::user_secret().status().code, Code::kIo);
  EXPECT_EQ(wire::connect("127.0.0.1:1").status().code, Code::kIo);
}

TEST_F(UserSecret, ManyAtOnceAgree) {
  int out[2];
  ASSERT_EQ(::pipe(out), 0);
  for (int i = 0; i < 12; ++i)
    if (::fork() == 0) {
      const auto secret = wire::user_secret();
      const std::string text = secret ? *secret : std::string(69, '?');
      ::_exit(::write(out[1], text.data(), 69) == 69 ? 0 : 1);
    }
  std::set<std::string> secrets;
  for (int i = 0; i < 12; ++i) {
    char text[69];
    ASSERT_EQ(::read(out[0], text, sizeof text), 69);
    secrets.insert(std::string(text, sizeof text));
  }
  while (::wait(nullptr) > 0) {
  }
  ::close(out[0]);
  ::close(out[1]);
  EXPECT_EQ(secrets.size(), 1u);
  EXPECT_FALSE(secrets.contains(std::string(69, '?')));
}

TEST_F(UserSecret, SharedMemoryUnderAnotherRuleIsExplained) {
  const std::string name = "shm:rules-" + std::to_string(::getpid());
  for (const bool insecure : {false, true}) {
    wire::Options listens, dials;
    listens.insecure = insecure;
    dials.insecure = !insecure;
    const auto listener = wire::Listener::open(name, listens);
    ASSERT_TRUE(listener.ok());
    const Status s = wire::connect(name, dials).status();
    EXPECT_EQ(s.code, Code::kPeer);
    EXPECT_NE(std::string(s.what).find(insecure ? "runs with --insecure" : "runs without"),
              std::string::npos)
        << s.what;
  }
  const Status nobody = wire::connect(name).status();
  EXPECT_NE(std::string(nobody.what).find("nobody listens"), std::string::npos) << nobody.what;
}

// The variable counts where no token is given, by the rules of one that is.
TEST_F(UserSecret, TheEnvironmentMayGiveTheToken) {
  const std::string token = "a token of the environment";
  ::setenv("SNUG_TOKEN", token.c_str(), 1);
  auto listener = wire::Listener::open("127.0.0.1:0");
  ::unsetenv("SNUG_TOKEN");
  ASSERT_TRUE(listener.ok());
  EXPECT_EQ(wire::connect(listener->address()).status().code, Code::kPeer);
  EXPECT_TRUE(wire::connect(listener->address(), with(token)).ok());
  for (const std::size_t size : {std::size_t{15}, wire::kMaxTokenBytes + 1}) {
    const std::string wrong(size, 'x');
    EXPECT_EQ(wire::Listener::open("127.0.0.1:0", with(wrong)).status().code, Code::kUsage);
    ::setenv("SNUG_TOKEN", wrong.c_str(), 1);
    EXPECT_EQ(wire::Listener::open("127.0.0.1:0").status().code, Code::kUsage);
    ::unsetenv("SNUG_TOKEN");
  }
}

// Another user of this host gets in neither over TCP nor over shared memory, and cannot take a
// dialler in by owning the name first.
TEST_F(UserSecret, AnotherUserStaysOutside) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const std::string shm = "shm:door-" + std::to_string(::getpid());
  auto tcp = wire::Listener::open("127.0.0.1:0");
  auto local = wire::Listener::open(shm);
  ASSERT_TRUE(tcp.ok() && local.ok());
  const std::string address = tcp->address();
  const pid_t child = ::fork();
  if (child == 0) {
    const fs::path home = folder_ / "nobody";
    fs::create_directory(home);
    fs::permissions(folder_, fs::perms::all);
    if (::chown(home.c_str(), 65534, 65534) != 0 || ::setgid(65534) != 0 || ::setuid(65534) != 0)
      ::_exit(9);
    ::setenv("XDG_CONFIG_HOME", home.c_str(), 1);
    wire::Options options;
    options.timeout = 3s;
    int got_in = wire::connect(address, options).ok() ? 1 : 0;
    const Status local_status = wire::connect(shm, options).status();
    got_in += local_status.ok() ? 2 : 0;
    got_in += std::string(local_status.what).find("another user") == std::string::npos ? 4 : 0;
    ::_exit(got_in);
  }
  int result = 0;
  ASSERT_EQ(::waitpid(child, &result, 0), child);
  EXPECT_EQ(WEXITSTATUS(result), 0);
  EXPECT_EQ(tcp->accept(10ms).status().code, Code::kTimeout);
  EXPECT_EQ(local->accept(10ms).status().code, Code::kTimeout);
}

}  // namespace
}  // namespace snug::test
