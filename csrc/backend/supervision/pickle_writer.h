// Writes plain values in Python's pickle format, protocol 2: dicts, lists, pairs of strings,
// strings, numbers, booleans and None.
//
// Source: the opcodes that Python's module pickletools describes.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace topoopt {

class PickleWriter {
 public:
  PickleWriter() : bytes_("\x80\x02", 2) {}

  // Keys and values alternate until the end.
  void beginDict() { bytes_ += "}("; }
  void endDict() { bytes_ += 'u'; }
  void beginList() { bytes_ += "]("; }
  void endList() { bytes_ += 'e'; }

  void text(std::string_view value);  // UTF-8
  void texts(std::string_view first, std::string_view second);
  void integer(int64_t value);
  void real(double value);
  void truth(bool value) { bytes_ += value ? '\x88' : '\x89'; }
  void none() { bytes_ += 'N'; }

  // A key with its value.
  void field(std::string_view key, std::string_view value) { text(key), text(value); }
  void field(std::string_view key, const char* value) { text(key), text(value); }
  void field(std::string_view key, int64_t value) { text(key), integer(value); }
  void field(std::string_view key, int value) { text(key), integer(value); }
  void field(std::string_view key, uint64_t value) {
    text(key), integer(static_cast<int64_t>(value));
  }
  void field(std::string_view key, double value) { text(key), real(value); }
  void field(std::string_view key, bool value) { text(key), truth(value); }

  // Returns the document; no writes may follow.
  std::string finish() { return (bytes_ += '.', std::move(bytes_)); }

 private:
  void number(uint64_t value, int bytes);

  std::string bytes_;
};

}  // namespace topoopt
