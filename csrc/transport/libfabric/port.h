// One endpoint of libfabric: what a link over it (fabric_link.h) needs of the library, and nothing
// of its headers, without which this builds too. The library itself is opened when the first
// endpoint is.
//
// An endpoint is reliable and connectionless (FI_EP_RDM), the one kind that every provider has:
// over `verbs` and `tcp` libfabric's own ofi_rxm connects it, `shm` has no other. One thread only.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace topoopt {

// "1.17" of the library that is installed; "" if there is none that this build can use.
std::string fabricVersion();
// Why there is none, and what to install; "" if there is one.
std::string fabricMissing();

struct FabricError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a provider offers through an interface.
struct FabricOffer {
  std::string provider;  // as libfabric names it, such as "verbs;ofi_rxm"
  std::string domain;    // an interface or an RDMA device
  std::string address;   // of an IP interface; else ""
};
// Throws FabricError if libfabric is missing.
std::vector<FabricOffer> fabricOffers(const std::string& provider);

class FabricPort {
 public:
  enum class Done {
    kSent,      // the slot `index` may be filled again
    kReceived,  // `bytes` are in the slot `index`
    kWritten,   // the memory of the write `index` is free again
    kPlaced,    // the other end has written, and says `data`
    kFailed,    // see `why`
  };
  struct Completion {
    Done done;
    size_t index = 0;
    size_t bytes = 0;
    uint64_t data = 0;
    bool gone = false;  // of kFailed: the other end is, or the cable is down
    std::string why{};
  };
  // Memory that the other end may write to.
  struct Advert {
    uint64_t address = 0;
    uint64_t key = 0;
    uint64_t bytes = 0;
  };
  struct PortSetup {
    std::string provider;           // "tcp", "shm" or "verbs"
    std::vector<std::byte> source;  // a sockaddr of the interface; empty where there is none
    size_t slots = 0;               // to receive into, all of them posted; and as many to send from
    size_t slot_bytes = 0;
    size_t payloads = 1;  // that are written at a time, and advertised
  };

  // Throws FabricError: libfabric is missing, or its provider has nothing there.
  explicit FabricPort(const PortSetup& setup);
  ~FabricPort();
  FabricPort(const FabricPort&) = delete;
  FabricPort& operator=(const FabricPort&) = delete;

  const std::string& provider() const;  // as libfabric names it
  // What the other end needs to reach this one.
  const std::vector<std::byte>& name() const;
  void connect(std::span<const std::byte> name);  // throws FabricError

  std::byte* sendSlot(size_t index);
  const std::byte* receiveSlot(size_t index) const;
  // These return false while the provider has no room, and throw FabricError.
  bool send(size_t index, size_t bytes);
  bool receive(size_t index);
  // Into what the other end has advertised, which is notified with `data`. `index` is that of none
  // that is not yet kWritten.
  bool write(size_t index, const std::byte* from, const Advert& to, uint32_t data);

  // Until withdraw(index). Throws FabricError.
  Advert advertise(size_t index, std::byte* place, size_t bytes);
  void withdraw(size_t index);

  // Lets the provider work; appends what is done.
  void progress(std::vector<Completion>& done);
  // A descriptor to sleep on, level-triggered; -1 if the provider has none.
  int descriptor() const;
  // Whether it may be slept on now.
  bool mayWait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace topoopt
