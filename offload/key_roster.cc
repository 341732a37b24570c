#include "offload/key_roster.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/digest.h"

namespace cairn {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

std::string ToHex(std::string_view bytes) {
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    hex += kDigits[static_cast<uint8_t>(byte) >> 4];
    hex += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  return hex;
}

std::optional<std::string> FromHex(std::string_view hex) {
  if (hex.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  for (size_t i = 0; i < hex.size(); i += 2) {
    const size_t high = kDigits.find(hex[i]), low = kDigits.find(hex[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

std::string Line(char sign, const std::string& key) { return LineWithDigest(sign + ToHex(key)); }

Status Failed(const std::string& path) {
  const std::string why = path + ": " + std::generic_category().message(errno);
  return errno == ENOSPC || errno == EDQUOT ? ResourceExhausted(why) : Unavailable(why);
}

// Everything, or nothing that lasts: what was written of it is cut off again.
Status WriteAt(int file, uint64_t offset, std::string_view bytes, const std::string& path) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written =
        pwrite(file, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (written > 0) {
      done += static_cast<size_t>(written);
    } else if (errno != EINTR) {
      Status failed = Failed(path);
      (void)ftruncate(file, static_cast<off_t>(offset));
      return failed;
    }
  }
  return Status();
}

}  // namespace

KeyRoster::KeyRoster(std::string path) : path_(std::move(path)) {
  std::ifstream file(path_, std::ios::binary);
  for (std::string line; std::getline(file, line); ++line_count_) {
    size_bytes_ += line.size() + 1;
    const size_t end = line.find(' ');
    if (end == std::string::npos || end == 0) continue;
    const std::string text = line.substr(0, end);
    const std::optional<std::string> key = FromHex(std::string_view(text).substr(1));
    if (!key || line + "\n" != LineWithDigest(text)) continue;
    if (text[0] == '+') {
      keys_.insert(*key);
    } else {
      keys_.erase(*key);
    }
  }
}

Status KeyRoster::Add(std::span<const std::string> keys) {
  std::string lines;
  std::set<std::string> added;
  for (const std::string& key : keys) {
    if (!keys_.contains(key) && added.insert(key).second) lines += Line('+', key);
  }
  RETURN_IF_ERROR(Append(lines));
  line_count_ += added.size();
  keys_.merge(added);
  return Status();
}

Status KeyRoster::Remove(std::span<const std::string> keys) {
  std::string lines;
  std::set<std::string> gone;
  for (const std::string& key : keys) {
    if (keys_.contains(key) && gone.insert(key).second) lines += Line('-', key);
  }
  RETURN_IF_ERROR(Append(lines));
  line_count_ += gone.size();
  for (const std::string& key : gone) keys_.erase(key);
  return Status();
}

Status KeyRoster::Append(const std::string& lines) {
  if (lines.empty()) return Status();
  const int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return Failed(path_);
  Status written = WriteAt(file, size_bytes_, lines, path_);
  close(file);
  if (written.ok()) size_bytes_ += lines.size();
  return written;
}

Status KeyRoster::Replace(std::set<std::string> keys) {
  if (keys == keys_ && line_count_ == keys.size()) return Status();
  std::string lines;
  for (const std::string& key : keys) lines += Line('+', key);
  const std::string fresh = path_ + ".new";
  const int file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return Failed(fresh);
  Status written = WriteAt(file, 0, lines, fresh);
  if (written.ok() && fsync(file) != 0) written = Failed(fresh);
  close(file);
  RETURN_IF_ERROR(written);
  if (rename(fresh.c_str(), path_.c_str()) != 0) return Failed(path_);
  line_count_ = keys.size();
  size_bytes_ = lines.size();
  keys_ = std::move(keys);
  return Status();
}

}  // namespace cairn
