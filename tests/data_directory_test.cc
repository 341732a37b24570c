// The directory of --disk-dir: what it takes, what it refuses and leaves as it is.
#include "offload/data_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "tests/fakes/ordinary_user.h"
#include "tests/fakes/scratch_folder.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

void WriteFile(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// Every file and folder below `path`, with what it holds.
std::map<std::string, std::string> Snapshot(const std::string& path) {
  std::map<std::string, std::string> found;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
    std::string text = "folder";
    if (entry.is_regular_file()) {
      std::ifstream file(entry.path());
      text.assign(std::istreambuf_iterator<char>(file), {});
    }
    found[entry.path().string()] = text;
  }
  return found;
}

class DataDirectoryTest : public testing::Test {
 protected:
  // The whole message of the refusal, after which everything is as it was.
  std::string Refusal(const std::string& path) {
    const auto before = Snapshot(scratch_.path());
    const auto opened = DataDirectory::Open(path);
    EXPECT_EQ(Snapshot(scratch_.path()), before);
    EXPECT_FALSE(opened.ok());
    const std::string message = opened.status().message();
    EXPECT_EQ(message.find('\n'), std::string::npos);
    const std::string prefix = "--disk-dir: " + path + ": ";
    EXPECT_TRUE(message.starts_with(prefix)) << message;
    return message.substr(std::min(prefix.size(), message.size()));
  }

  ScratchFolder scratch_;
  const std::string path_ = scratch_.File("data");
};

TEST_F(DataDirectoryTest, IsMadeAndFoundAgain) {
  for (int start = 0; start < 3; ++start) {
    const auto directory = DataDirectory::Open(path_ + "/");  // a slash at the end means nothing
    ASSERT_TRUE(directory.ok()) << directory.status().ToString();
    EXPECT_EQ((*directory)->path(), path_);
    EXPECT_TRUE(fs::is_directory((*directory)->sessions_path()));
    EXPECT_TRUE(fs::is_directory((*directory)->blocks_path()));
    EXPECT_EQ(Snapshot(path_).at(path_ + "/cairn-directory"), "cairn data directory, format 1\n");
    EXPECT_EQ(fs::status(path_).permissions(), fs::perms::owner_all);  // texts are private
  }
}

TEST_F(DataDirectoryTest, TakesAnEmptyOneAndOneHalfMade) {
  fs::create_directories(path_ + "/lost+found");  // a file system of its own
  ASSERT_TRUE(DataDirectory::Open(path_).ok());
  fs::remove(path_ + "/cairn-directory");
  fs::remove(path_ + "/sessions");
  fs::remove(path_ + "/blocks");
  WriteFile(path_ + "/cairn-directory.new", "cairn data dir");  // died while it wrote the mark
  ASSERT_TRUE(DataDirectory::Open(path_).ok());
}

TEST_F(DataDirectoryTest, ASecondServerIsToldWhoHasIt) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    const auto directory = DataDirectory::Open(path_);
    const char answer = directory.ok() ? 'y' : 'n';
    if (write(ready[1], &answer, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  EXPECT_EQ(Refusal(path_), "is in use by the server with process id " + std::to_string(holder));
  kill(holder, SIGKILL);
  ASSERT_EQ(waitpid(holder, nullptr, 0), holder);
  EXPECT_TRUE(DataDirectory::Open(path_).ok()) << "the lock ends with the process";
  close(ready[0]);
  close(ready[1]);
}

TEST_F(DataDirectoryTest, RefusesWhatIsNotOurs) {
  WriteFile(scratch_.File("file"), "text");
  EXPECT_EQ(Refusal(scratch_.File("file")), "must be a directory, is a file");
  EXPECT_EQ(Refusal(scratch_.File("file/below")), "cannot look at it: Not a directory");
  EXPECT_EQ(Refusal(scratch_.File("a/b")),
            "cannot be made: there is no directory " + scratch_.File("a"));

  fs::create_directory(path_);
  WriteFile(path_ + "/letter.txt", "dear");
  EXPECT_EQ(Refusal(path_),
            "is not empty and not Cairn's: it has letter.txt and no cairn-directory");
  WriteFile(path_ + "/CURRENT", "MANIFEST-000004\n");
  EXPECT_EQ(Refusal(path_), "holds a RocksDB database that is not Cairn's");
  WriteFile(path_ + "/cairn-directory", "something else");
  EXPECT_EQ(Refusal(path_),
            "cairn-directory in it is not Cairn's; expected \"cairn data directory, format 1\"");
  for (const char* damaged :
       {"", "\n", "cairn data directory, format \n", "cairn data directory, format 1",
        "cairn data directory, format 1x\n"}) {
    WriteFile(path_ + "/cairn-directory", damaged);
    EXPECT_THAT(Refusal(path_), HasSubstr("is not Cairn's; expected")) << damaged;
  }
  WriteFile(path_ + "/cairn-directory", "cairn data directory, format 2\n");
  EXPECT_EQ(Refusal(path_), "has format 2, and this server reads format 1 only");
}

TEST_F(DataDirectoryTest, RefusesWhatItMayNotWrite) {
  fs::create_directory(path_);
  fs::permissions(scratch_.path(), fs::perms::all);
  fs::permissions(path_, fs::perms::owner_read | fs::perms::owner_exec);
  const OrdinaryUser user;
  EXPECT_EQ(DataDirectory::Open(path_).status().message(),
            "--disk-dir: " + path_ + ": must be readable and writable: Permission denied");
}

}  // namespace
}  // namespace cairn
