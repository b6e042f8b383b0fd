// Numbers in a text.

#pragma once

#include <string>
#include <vector>

namespace topoopt {

// As "0, 2, 3".
template <typename Number>
std::string joined(const std::vector<Number>& numbers, const char* separator = ", ") {
  std::string text;
  for (const Number number : numbers) {
    if (!text.empty()) text += separator;
    text += std::to_string(number);
  }
  return text;
}

}  // namespace topoopt
