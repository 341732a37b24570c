#include "engine/message_text.h"

namespace cairn {

std::string Grouped(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t left = text.size(); left > 3; left -= 3) text.insert(left - 3, 1, ',');
  return text;
}

std::string Quoted(std::string_view name) {
  static constexpr size_t kShownMax = 80;
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "'";
  for (const char c : name.substr(0, kShownMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  if (name.size() > kShownMax) text += "...";
  return text + "'";
}

}  // namespace cairn
