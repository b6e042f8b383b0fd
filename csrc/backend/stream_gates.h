// What a stream of a device waits for while the host goes on: words of page-locked memory.
//
// A gate is a word and the number that opens it. A stream that waits at it goes on when the word
// has reached the number, which the host writes, or a stream after all that it has been given. A
// word serves again once its number has been written: who still waits for a smaller one goes on.

#pragma once

#include <ATen/ATen.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace topoopt {

// Of a kind of device: as cuStreamWaitValue32 (flags 0: greater or equal) and cuStreamWriteValue32
// of CUDA's driver. They return 0, or the number of an error.
struct StreamWaits {
  using Function = int (*)(void* stream, uint64_t address, uint32_t value, unsigned flags);

  Function wait = nullptr;
  Function write = nullptr;
};

// Whether what the stream is given goes to a graph that may be launched later, again and again.
bool recordsGraph(const c10::Stream& stream);

// For devices other than CUDA's, whose driver is asked by itself.
void registerStreamWaits(c10::DeviceType type, StreamWaits waits);

// Of one device and one process group. Any thread.
class StreamGates {
 public:
  struct Gate {
    uint32_t* word = nullptr;
    uint32_t number = 0;
  };

  // Throws DistBackendError if streams of the device cannot wait for memory.
  explicit StreamGates(c10::Device device);

  Gate take();                                                  // a closed one
  void await(const Gate& gate, const c10::Stream& stream);      // lets the stream wait
  void openAfter(const Gate& gate, const c10::Stream& stream);  // what the stream has been given
  static void open(const Gate& gate);

 private:
  void call(const char* name, StreamWaits::Function function, const Gate& gate,
            const c10::Stream& stream) const;

  const c10::Device device_;
  StreamWaits waits_;
  std::mutex mutex_;
  std::vector<at::Tensor> pages_;  // guarded by mutex_
  std::vector<Gate> taken_;        // the last of each word; guarded by mutex_
};

}  // namespace topoopt
