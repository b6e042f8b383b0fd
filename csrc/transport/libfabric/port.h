// One endpoint of libfabric for a link (link.h). It hides libfabric's headers, so the build does
// not require them. The library is opened with the first endpoint.
//
// An endpoint is reliable and connectionless (FI_EP_RDM), the one type that all providers have:
// `verbs` and `tcp` through libfabric's ofi_rxm, and `shm` natively. One thread only.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace topoopt {

// Version of the installed library, such as "1.17"; "" if none is usable.
std::string fabricVersion();
// Reason of a missing library and the package to install; "" if it is present.
std::string fabricMissing();

struct FabricError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The IP addresses of the interfaces that a provider, such as "verbs", can use. Throws FabricError
// if libfabric is missing.
std::vector<std::string> fabricAddresses(const std::string& provider);

class FabricPort {
 public:
  enum class Done {
    kSent,      // the slot `index` is free again
    kReceived,  // the slot `index` holds `bytes`
    kWritten,   // the memory of the write `index` is free again
    kPlaced,    // the other end has written, with the number `data`
    kFailed,    // see `why`
  };
  struct Completion {
    Done done;
    size_t index = 0;
    size_t bytes = 0;
    uint64_t data = 0;
    bool gone = false;  // for kFailed: the other end or the cable is down
    std::string why{};
  };
  // Memory that the other end may write.
  struct Advert {
    uint64_t address = 0;
    uint64_t key = 0;
    uint64_t bytes = 0;
  };
  struct PortSetup {
    std::string provider;           // "tcp", "shm" or "verbs"
    std::vector<std::byte> source;  // sockaddr of the interface; empty: none
    size_t slots = 0;               // posted receives, and as many send slots
    size_t slot_bytes = 0;
    size_t payloads = 1;  // concurrent writes and advertisements
  };

  // Throws FabricError if libfabric is missing, or its provider has no offer there.
  explicit FabricPort(const PortSetup& setup);
  ~FabricPort();
  FabricPort(const FabricPort&) = delete;
  FabricPort& operator=(const FabricPort&) = delete;

  const std::string& provider() const;  // libfabric's name
  // The address of this endpoint for the other end.
  const std::vector<std::byte>& name() const;
  void connect(std::span<const std::byte> name);  // throws FabricError

  std::byte* sendSlot(size_t index);
  const std::byte* receiveSlot(size_t index) const;
  // These return false if the provider has no room, and throw FabricError.
  bool send(size_t index, size_t bytes);
  bool receive(size_t index);
  // Writes to advertised memory of the other end and notifies it with `data`. `index` must not
  // belong to a running write.
  bool write(size_t index, const std::byte* from, const Advert& to, uint32_t data);

  // Valid until withdraw(index). Throws FabricError.
  Advert advertise(size_t index, std::byte* place, size_t bytes);
  void withdraw(size_t index);

  // Runs the provider and appends completions.
  void progress(std::vector<Completion>& done);
  // A descriptor to sleep on, level-triggered; -1 if the provider has none.
  int descriptor() const;
  // Returns whether sleeping on the descriptor is safe now.
  bool mayWait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace topoopt
