// Flags and the configuration file: one table, so every setting is tried both ways.
#include "service/server_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "service/listen_address.h"
#include "tests/fakes/scratch_folder.h"

namespace cairn {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Result<CommandLine> Parse(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "cairnd");
  return ParseCommandLine(static_cast<int>(flags.size()), flags.data());
}

std::string ErrorOf(std::vector<const char*> flags) {
  const Result<CommandLine> line = Parse(std::move(flags));
  return line.ok() ? "" : line.status().message();
}

std::string ErrorOfText(const std::string& text) {
  ServerConfig config;
  return ReadConfigText(text, "cairn.conf", config).message();
}

TEST(ServerConfig, DefaultsAreThoseOfTheHeader) {
  const Result<CommandLine> line = Parse({});
  ASSERT_TRUE(line.ok());
  EXPECT_FALSE(line->text);
  EXPECT_EQ(line->config.listen, "127.0.0.1:50051");
  EXPECT_EQ(line->config.backend, "auto");
  EXPECT_EQ(line->config.compute, "exact");
  EXPECT_EQ(line->config.model, "");
  EXPECT_EQ(line->config.threads, 0u);
  EXPECT_EQ(line->config.message_bytes_max, 33'554'432u);
}

// No field as it is by default.
void ExpectEveryFieldIsSet(const ServerConfig& config) {
  EXPECT_EQ(config.model, "m.gguf");
  EXPECT_EQ(config.backend, "cpu");
  EXPECT_EQ(config.compute, "fast");
  EXPECT_EQ(config.context_length, 16384u);
  EXPECT_EQ(config.instruction_set, "baseline");
  EXPECT_EQ(config.listen, "0.0.0.0:1");
  EXPECT_EQ(config.health_listen, "[::]:2");
  EXPECT_EQ(config.message_bytes_max, 1'048'576u);
  EXPECT_EQ(config.request_memory_bytes, 3u << 20);
  EXPECT_EQ(config.stream_buffer_tokens, 7u);
  EXPECT_EQ(config.stream_interval_ms, 8u);
  EXPECT_EQ(config.drain_grace_seconds, 3u);
  EXPECT_EQ(config.device_memory_bytes, 2'147'483'648u);
  EXPECT_EQ(config.host_memory_bytes, 3'145'728u);
  EXPECT_EQ(config.host_blocks, "copied");
  EXPECT_EQ(config.host_pages, "locked");
  EXPECT_EQ(config.disk_dir, "/var/lib/cairn");
  EXPECT_EQ(config.durability, "os");
  EXPECT_EQ(config.disk_memory_bytes, 67'108'864u);
  EXPECT_EQ(config.host_bandwidth_limit, 31'457'280u);
  EXPECT_EQ(config.disk_bandwidth_limit, 20'971'520u);
  EXPECT_EQ(config.threads, 5u);
  EXPECT_EQ(config.max_concurrent, 6u);
  EXPECT_EQ(config.prefill_chunk_tokens, 512u);
  EXPECT_EQ(config.max_tokens_default, 9u);
  EXPECT_EQ(config.restore_policy, "cut");
  EXPECT_TRUE(config.recalibrate);
  EXPECT_EQ(config.restore_cut_percent, 7u);
  EXPECT_EQ(config.restore_share_percent, 35u);
  EXPECT_EQ(config.log_level, "error");
  EXPECT_EQ(LogLevelOf(config), LogLevel::kError);
  EXPECT_EQ(config.trace_file, "t.json");
}

TEST(ServerConfig, EveryFlagSetsItsField) {
  const Result<CommandLine> line = Parse({"--model=m.gguf",
                                          "--backend=cpu",
                                          "--compute=fast",
                                          "--context-length=16384",
                                          "--instruction-set=baseline",
                                          "--listen=0.0.0.0:1",
                                          "--health-listen=[::]:2",
                                          "--message-size-max=1MiB",
                                          "--request-memory=3MiB",
                                          "--stream-buffer=7",
                                          "--stream-interval=8",
                                          "--drain-grace=3",
                                          "--device-memory",
                                          "2 GiB",
                                          "--host-memory=3MiB",
                                          "--host-blocks=copied",
                                          "--host-pages=locked",
                                          "--host-bandwidth-limit=30MiB/s",
                                          "--disk-dir=/var/lib/cairn",
                                          "--durability=os",
                                          "--disk-memory=64MiB",
                                          "--disk-bandwidth-limit=20MiB/s",
                                          "--threads=5",
                                          "--max-concurrent=6",
                                          "--prefill-chunk=512",
                                          "--max-tokens-default=9",
                                          "--restore-policy=cut",
                                          "--restore-cut=7",
                                          "--recalibrate",
                                          "--restore-share=35",
                                          "--log-level=error",
                                          "--trace=t.json"});
  ASSERT_TRUE(line.ok()) << line.status().message();
  ExpectEveryFieldIsSet(line->config);
}

TEST(ServerConfig, EveryFieldOfTheFileSetsTheSame) {
  ServerConfig config;
  const Status status = ReadConfigText(
      "model: 'm.gguf' backend: 'cpu' compute: 'fast' context_length: 16384 instruction_set: "
      "'baseline'\n"
      "listen: '0.0.0.0:1' health_listen: '[::]:2' message_bytes_max: 1048576\n"
      "request_memory_bytes: 3145728 stream_buffer_tokens: 7 stream_interval_ms: 8\n"
      "drain_grace_seconds: 3 device_memory_bytes: 2147483648 host_memory_bytes: 3145728\n"
      "host_blocks: 'copied' host_pages: 'locked' host_bandwidth_limit: 31457280\n"
      "disk_dir: '/var/lib/cairn' durability: 'os'\n"
      "disk_memory_bytes: 67108864 disk_bandwidth_limit: 20971520 threads: 5\n"
      "max_concurrent: 6 prefill_chunk_tokens: 512 max_tokens_default: 9\n"
      "restore_policy: 'cut' recalibrate: true restore_cut_percent: 7 restore_share_percent: 35\n"
      "log_level: 'error' trace_file: 't.json'",
      "cairn.conf", config);
  ASSERT_TRUE(status.ok()) << status.message();
  ExpectEveryFieldIsSet(config);
}

TEST(ServerConfig, FlagsOverrideTheFileAndTheFileTheDefaults) {
  const ScratchFolder folder;
  const std::string path = folder.File("cairn.conf");
  std::ofstream(path) << "threads: 3\nmax_concurrent: 8\n";
  const Result<CommandLine> line = Parse({"--threads", "4", "--config", path.c_str()});
  ASSERT_TRUE(line.ok()) << line.status().message();
  EXPECT_EQ(line->config.threads, 4u);
  EXPECT_EQ(line->config.max_concurrent, 8u);
  EXPECT_EQ(line->config.prefill_chunk_tokens, 256u);
}

TEST(ServerConfig, BoundsAreNamedWithFlagLimitAndValue) {
  EXPECT_EQ(ErrorOf({"--max-concurrent", "0"}), "--max-concurrent: must be in 1..1024, is 0");
  EXPECT_EQ(ErrorOf({"--prefill-chunk", "8193"}), "--prefill-chunk: must be in 16..8192, is 8193");
  EXPECT_EQ(ErrorOf({"--restore-share", "96"}), "--restore-share: must be in 1..95, is 96");
  EXPECT_EQ(ErrorOf({"--restore-share", "0"}), "--restore-share: must be in 1..95, is 0");
  EXPECT_EQ(ErrorOf({"--threads", "1025"}),
            "--threads: must be in 1..256 or 0 (one a core), is 1025");
  EXPECT_EQ(ErrorOf({"--device-memory", "4KiB"}),
            "--device-memory: must be in 1MiB..64TiB or 0 (fits the machine), is 4KiB");
  EXPECT_EQ(ErrorOf({"--compute", "sloppy"}),
            "--compute: must be one of exact, fast, is \"sloppy\"");
  EXPECT_EQ(ErrorOfText("max_concurrent: 5000"),
            "cairn.conf: max_concurrent: must be in 1..1024, is 5000");
  EXPECT_TRUE(Parse({"--threads", "0"}).ok());
  EXPECT_TRUE(Parse({"--drain-grace", "0"}).ok());
}

TEST(ServerConfig, OneRequestFitsTheMemoryOfAll) {
  EXPECT_THAT(ErrorOf({"--request-memory", "1MiB"}),
              AllOf(HasSubstr("--request-memory"), HasSubstr("--message-size-max (32MiB)"),
                    HasSubstr("is 1MiB")));
  EXPECT_EQ(ErrorOf({"--request-memory", "1MiB", "--message-size-max", "1MiB"}), "");
}

TEST(ServerConfig, ACutIsOfThePolicyThatCuts) {
  EXPECT_EQ(ErrorOf({"--restore-cut", "30"}),
            "--restore-cut: cuts nothing without --restore-policy cut, is 30");
  EXPECT_THAT(ErrorOf({"--restore-cut", "0", "--restore-policy", "wave"}),
              HasSubstr("--restore-policy cut"));
  EXPECT_EQ(ErrorOf({"--restore-cut", "30", "--restore-policy", "cut"}), "");
}

TEST(ServerConfig, ValuesThatAreNoNumbersAreNamed) {
  EXPECT_EQ(ErrorOf({"--threads", "two"}), "--threads: must be a whole number, is \"two\"");
  EXPECT_EQ(ErrorOf({"--threads", "-1"}), "--threads: must be a whole number, is \"-1\"");
  EXPECT_EQ(ErrorOf({"--threads", ""}), "--threads: must be a whole number, is \"\"");
  EXPECT_EQ(ErrorOf({"--threads", "99999999999999999999"}),
            "--threads: is too large, is \"99999999999999999999\"");
  EXPECT_EQ(ErrorOf({"--device-memory", "4GB"}),
            "--device-memory: must be bytes, or a number with KiB, MiB, GiB or TiB, is \"4GB\"");
}

TEST(ServerConfig, UnknownFlagsAndStrayArgumentsAreRefused) {
  EXPECT_EQ(ErrorOf({"--modle", "m.gguf"}),
            "unknown flag or argument: --modle (--help lists the flags)");
  EXPECT_THAT(ErrorOf({"m.gguf"}), HasSubstr("m.gguf"));
  EXPECT_THAT(ErrorOf({"--threads"}), HasSubstr("--threads"));
  EXPECT_THAT(ErrorOf({"--threads", "1", "--threads", "2"}), HasSubstr("--threads"));
}

TEST(ServerConfig, ErrorsOfTheFileNameLineAndColumn) {
  EXPECT_THAT(ErrorOfText("threads: 2\nmodle: 'x'\n"),
              AllOf(HasSubstr("cairn.conf:2:"), HasSubstr("modle")));
  EXPECT_THAT(ErrorOfText("threads: 'two'"), AllOf(HasSubstr("cairn.conf:1:"), HasSubstr("two")));
  EXPECT_THAT(ErrorOfText("threads: 2 threads: 3"), HasSubstr("threads"));
  EXPECT_THAT(ErrorOfText("\n\nthreads {"), HasSubstr("cairn.conf:3:"));
  EXPECT_THAT(ErrorOfText("max_concurrent: -1"), HasSubstr("cairn.conf:1:"));
}

TEST(ServerConfig, FilesThatCannotBeReadAreNamed) {
  const ScratchFolder folder;
  const std::string missing = folder.File("missing.conf");
  EXPECT_THAT(ErrorOf({"--config", missing.c_str()}),
              AllOf(HasSubstr("--config"), HasSubstr(missing), HasSubstr("No such file")));
  const std::string path = folder.path();
  EXPECT_THAT(ErrorOf({"--config", path.c_str()}), HasSubstr("is not a file"));
  const std::string large = folder.File("large.conf");
  std::ofstream(large) << std::string((1 << 20) + 1, '#');
  EXPECT_THAT(ErrorOf({"--config", large.c_str()}),
              AllOf(HasSubstr("at most 1MiB"), HasSubstr("1048577 bytes")));
}

TEST(ServerConfig, HelpGroupsEveryFlagAndVersionIsOneLine) {
  const Result<CommandLine> help = Parse({"--help"});
  ASSERT_TRUE(help.ok());
  ASSERT_TRUE(help->text);
  for (const char* text : {"Model:",
                           "Network:",
                           "Memory:",
                           "Scheduling:",
                           "Observability:",
                           "--model",
                           "--listen",
                           "--health-listen",
                           "--threads",
                           "--device-memory",
                           "--max-concurrent",
                           "--prefill-chunk",
                           "--context-length",
                           "--config",
                           "--log-level",
                           "--version",
                           "--backend",
                           "--compute",
                           "--trace",
                           "--instruction-set",
                           "--max-tokens-default",
                           "--drain-grace",
                           "SIZE: bytes, or a number with KiB, MiB, GiB or TiB."}) {
    EXPECT_THAT(*help->text, HasSubstr(text));
  }
  const Result<CommandLine> version = Parse({"--version"});
  ASSERT_TRUE(version.ok());
  EXPECT_THAT(version->text.value_or(""), testing::MatchesRegex("cairnd [0-9.]+\n"));
}

TEST(ServerConfig, HelpNamesBoundsAndDefaultOfEverySetting) {
  const std::string help = *Parse({"--help"})->text;
  for (const char* text :
       {"(default: the one that ./cairn setup fetches)", "(default: 127.0.0.1:50051)",
        "(16..4194304, default: as trained)", "(64KiB..1GiB, default: 32MiB)",
        "(0..86400, default: 30)", "(1MiB..64TiB, default: fits the machine)",
        "(64KiB/s..1TiB/s, default: none)", "(default: none: sessions end with the process)",
        "(default: off)"}) {
    EXPECT_THAT(help, HasSubstr(text));
  }
  std::vector<std::string> flags;  // of each what it says, also on a second line
  std::istringstream lines(help.substr(0, help.find("General:")));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  --")) flags.emplace_back();
    if (line.starts_with("  ")) flags.back() += line;
  }
  EXPECT_GT(flags.size(), 25u);
  for (const std::string& flag : flags) {
    EXPECT_THAT(flag, testing::MatchesRegex("  --.* \\(.*default: .*\\)"));
  }
}

TEST(ParseSize, TakesBytesAndBinaryUnits) {
  EXPECT_EQ(*ParseSize("0"), 0u);
  EXPECT_EQ(*ParseSize("1234567"), 1'234'567u);
  EXPECT_EQ(*ParseSize("3KiB"), 3072u);
  EXPECT_EQ(*ParseSize("512MiB"), 536'870'912u);
  EXPECT_EQ(*ParseSize("4 GiB"), 4'294'967'296u);
  EXPECT_EQ(*ParseSize("2TiB"), 2'199'023'255'552u);
  EXPECT_EQ(*ParseSize("18446744073709551615"), UINT64_MAX);
  for (const char* bad : {"", "MiB", "1.5GiB", "-1", "4gib", "4GB", "1MiB ", "1  MiB", "0x10",
                          "18446744073709551616", "16777216TiB"}) {
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
  }
}

TEST(ListenAddress, TakesNamesAddressesAndPorts) {
  EXPECT_EQ(ParseListenAddress("--listen", "127.0.0.1:50051")->port, 50051);
  EXPECT_EQ(ParseListenAddress("--listen", "localhost:0")->host, "localhost");
  EXPECT_EQ(ParseListenAddress("--listen", "[::1]:80")->host, "::1");
  EXPECT_EQ(ParseListenAddress("--listen", "[::1]:80")->ToString(), "[::1]:80");
  EXPECT_EQ(ParseListenAddress("--listen", "0.0.0.0:65535")->ToString(), "0.0.0.0:65535");
  for (const char* bad : {"", ":", "localhost", "localhost:", ":50051", "localhost:65536",
                          "localhost:-1", "localhost:http", "::1:80", "[]:80", "localhost:80 "}) {
    const Result<ListenAddress> address = ParseListenAddress("--somewhere", bad);
    ASSERT_FALSE(address.ok()) << bad;
    EXPECT_THAT(address.status().message(), testing::StartsWith("--somewhere: "));
    EXPECT_THAT(address.status().message(), HasSubstr("\"" + std::string(bad) + "\""));
  }
}

}  // namespace
}  // namespace cairn
