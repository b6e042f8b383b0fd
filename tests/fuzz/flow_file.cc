// A flow file: a program, or an error that names a line; never anything else.

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "sim/core/flow_program_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    topoopt::parseFlowProgram({reinterpret_cast<const char*>(data), size});
  } catch (const std::invalid_argument& error) {
    const std::string_view said = error.what();
    if (said.substr(0, 5) != "line " || said.size() > 1000) std::abort();
    for (const char c : said) {
      if (c < ' ' || c > '~') std::abort();
    }
  }
  return 0;
}
