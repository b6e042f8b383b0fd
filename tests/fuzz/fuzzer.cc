// The loop of a fuzzer for compilers without libFuzzer: a target, LLVMFuzzerTestOneInput, is called
// with inputs that are mutated from a corpus, and those that reach code which no input before them
// has reached are mutated further. The target is compiled with -fsanitize-coverage=trace-pc.
//
//     TARGET FOLDER --runs N [--seed S] [--longest BYTES]
//
// The same seed gives the same inputs. An input that crashes or takes 10 s is written to
// FOLDER/../crash-TARGET before the program ends with an error.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Of the sanitizers; called before they end the program.
extern "C" void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Input = std::vector<uint8_t>;

constexpr unsigned kLimitSeconds = 10;  // of one input
constexpr size_t kMostKept = 4096;

// Places of the target's code that were reached, by the low bits of their addresses.
std::array<uint8_t, 1 << 16> reached;
size_t news = 0;

Input current;
std::string crash_path;

void saveCurrent() {
  const int file = open(crash_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = write(file, current.data(), current.size());
  close(file);
  constexpr char kSaid[] = "fuzzer: the input is in the file crash-*, beside the corpus\n";
  [[maybe_unused]] const ssize_t said = write(2, kSaid, sizeof kSaid - 1);
}

void onSignal(int) {
  saveCurrent();
  _exit(1);
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed, size_t longest) : random_(seed), longest_(longest) {}

  size_t below(size_t count) { return count == 0 ? 0 : random_() % count; }

  void mutate(Input& input, const std::vector<Input>& kept) {
    for (size_t count = 1 + below(4); count > 0; --count) step(input, kept);
    if (input.size() > longest_) input.resize(longest_);
  }

 private:
  void step(Input& input, const std::vector<Input>& kept) {
    static constexpr uint64_t kNumbers[] = {0,        1,         2,         127,       128,
                                            255,      65535,     65536,     1u << 31,  UINT32_MAX,
                                            1l << 40, INT64_MAX, 1ul << 63, UINT64_MAX};
    const size_t at = below(input.size() + 1);
    switch (below(8)) {
      case 0:
        if (!input.empty()) input[below(input.size())] ^= 1u << below(8);
        return;
      case 1:
        if (!input.empty()) input[below(input.size())] = static_cast<uint8_t>(random_());
        return;
      case 2:
        input.insert(input.begin() + at, 1 + below(8), static_cast<uint8_t>(random_()));
        return;
      case 3:
        input.erase(input.begin() + at, input.begin() + at + below(input.size() - at + 1));
        return;
      case 4: {  // a number of 1 to 8 bytes
        const uint64_t number = kNumbers[below(std::size(kNumbers))];
        const size_t size = std::min<size_t>(size_t{1} << below(4), input.size() - at);
        std::memcpy(input.data() + at, &number, size);
        return;
      }
      case 5: {  // a number as text
        const uint64_t number = kNumbers[below(std::size(kNumbers))];
        const std::string text = std::to_string(static_cast<int64_t>(number));
        input.insert(input.begin() + at, text.begin(), text.end());
        return;
      }
      case 6: {  // a part of itself once more
        const size_t from = below(input.size() + 1);
        const Input part(
            input.begin() + from,
            input.begin() + from + below(std::min<size_t>(64, input.size() - from) + 1));
        input.insert(input.begin() + at, part.begin(), part.end());
        return;
      }
      default: {  // the end of another
        const Input& other = kept[below(kept.size())];
        input.resize(at);
        input.insert(input.end(), other.begin() + below(other.size() + 1), other.end());
      }
    }
  }

  std::mt19937_64 random_;
  size_t longest_;
};

void run(const Input& input) {
  current = input;
  alarm(kLimitSeconds);
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

}  // namespace

extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  uint8_t& there = reached[(place ^ (place >> 16)) % reached.size()];
  news += there == 0;
  there = 1;
}

int main(int count, char** arguments) {
  if (count < 4) {
    std::fprintf(stderr, "usage: %s FOLDER --runs N [--seed S] [--longest BYTES]\n", arguments[0]);
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  uint64_t runs = 0, seed = 1, longest = 4096;
  for (int i = 2; i + 1 < count; i += 2) {
    const std::string name = arguments[i];
    uint64_t& value = name == "--runs" ? runs : name == "--seed" ? seed : longest;
    value = std::strtoull(arguments[i + 1], nullptr, 10);
  }
  const std::string target = std::filesystem::path(arguments[0]).filename();
  crash_path = folder.parent_path() / ("crash-" + target);
  __sanitizer_set_death_callback(saveCurrent);
  for (const int number : {SIGALRM, SIGABRT, SIGSEGV}) std::signal(number, onSignal);

  std::vector<Input> kept;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry);
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    kept.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
    run(kept.back());
  }
  if (kept.empty()) kept.emplace_back();
  Mutator mutator(seed, longest);
  for (uint64_t i = 0; i < runs; ++i) {
    Input input = kept[mutator.below(kept.size())];
    mutator.mutate(input, kept);
    news = 0;
    run(input);
    if (news > 0 && kept.size() < kMostKept) kept.push_back(std::move(input));
  }
  alarm(0);
  const auto places = std::count(reached.begin(), reached.end(), 1);
  std::printf("%s: %llu inputs, %zu kept, %zu places reached\n", target.c_str(),
              static_cast<unsigned long long>(runs), kept.size(), static_cast<size_t>(places));
  return 0;
}
