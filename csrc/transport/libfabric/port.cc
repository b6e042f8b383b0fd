#include "transport/libfabric/port.h"

#include <utility>

#if __has_include(<rdma/fabric.h>)
#define TOPOOPT_FABRIC 1
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#endif

namespace topoopt {

#ifdef TOPOOPT_FABRIC

namespace {

constexpr uint32_t kApi = FI_VERSION(1, 14);
constexpr char kLibrary[] = "libfabric.so.1";
constexpr size_t kNameBytes = 512;

// The functions that libfabric exports; all others are inline in its headers.
struct Library {
  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_freeinfo) freeinfo = nullptr;
  decltype(&::fi_dupinfo) dupinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;
  decltype(&::fi_strerror) strerror = nullptr;
  decltype(&::fi_version) version = nullptr;
  std::string missing;

  Library() {
    // Never unloaded, because providers may have threads and handlers.
    void* const handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr) {
      missing = std::string(kLibrary) + " is not installed: apt-get install libfabric1";
      return;
    }
    find(handle, "fi_getinfo", getinfo);
    find(handle, "fi_freeinfo", freeinfo);
    find(handle, "fi_dupinfo", dupinfo);
    find(handle, "fi_fabric", fabric);
    find(handle, "fi_strerror", strerror);
    find(handle, "fi_version", version);
    if (missing.empty() && version() < kApi) {
      missing = std::string(kLibrary) + " is older than 1.14: install a newer libfabric";
    }
  }

 private:
  template <typename Function>
  void find(void* handle, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr) missing = std::string(kLibrary) + " has no " + name;
  }
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

// Closes libfabric's objects in reverse order of opening.
template <typename Object>
struct Close {
  void operator()(Object* object) const { fi_close(&object->fid); }
};
template <typename Object>
using Owned = std::unique_ptr<Object, Close<Object>>;

struct FreeInfo {
  void operator()(fi_info* info) const { library().freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

[[noreturn]] void fail(const std::string& provider, const char* what, ssize_t error) {
  throw FabricError("libfabric (" + provider + "): " + what + ": " +
                    library().strerror(static_cast<int>(-error)));
}

void check(const std::string& provider, const char* what, ssize_t result) {
  if (result < 0) fail(provider, what, result);
}

// Queries all of libfabric's providers, which takes milliseconds.
Info ask(const std::string& provider, const std::vector<std::byte>& source) {
  if (!library().missing.empty()) throw FabricError(library().missing);
  const Info hints(library().dupinfo(nullptr));
  if (!hints) throw std::bad_alloc();
  hints->caps = FI_MSG | FI_SEND | FI_RECV | FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->tx_attr->msg_order = FI_ORDER_SAS;
  hints->rx_attr->msg_order = FI_ORDER_SAS;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->fabric_attr->prov_name = strdup(provider.c_str());
  if (!source.empty()) {
    hints->src_addr = malloc(source.size());
    if (hints->src_addr == nullptr) throw std::bad_alloc();
    std::memcpy(hints->src_addr, source.data(), source.size());
    hints->src_addrlen = source.size();
    sa_family_t family = AF_UNSPEC;
    std::memcpy(&family, source.data() + offsetof(sockaddr, sa_family), sizeof family);
    hints->addr_format = family == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
  }
  fi_info* found = nullptr;
  const int result = library().getinfo(kApi, nullptr, nullptr, 0, hints.get(), &found);
  if (result == -FI_ENODATA) return nullptr;
  check(provider, "fi_getinfo", result);
  return Info(found);
}

bool isOf(const fi_info& info, const std::vector<std::byte>& source) {
  sa_family_t family = AF_UNSPEC;
  std::memcpy(&family, source.data() + offsetof(sockaddr, sa_family), sizeof family);
  if (info.src_addr == nullptr) return false;
  if (family == AF_INET && info.addr_format == FI_SOCKADDR_IN) {
    sockaddr_in near{};
    std::memcpy(&near, source.data(), std::min(source.size(), sizeof near));
    const auto* const own = static_cast<const sockaddr_in*>(info.src_addr);
    return own->sin_addr.s_addr == near.sin_addr.s_addr;
  }
  if (family == AF_INET6 && info.addr_format == FI_SOCKADDR_IN6) {
    sockaddr_in6 near{};
    std::memcpy(&near, source.data(), std::min(source.size(), sizeof near));
    const auto* const own = static_cast<const sockaddr_in6*>(info.src_addr);
    return IN6_ARE_ADDR_EQUAL(&own->sin6_addr, &near.sin6_addr) &&
           own->sin6_scope_id == near.sin6_scope_id;
  }
  return false;
}

// A provider's offers at all addresses of this host, queried once per process.
const Info& allOf(const std::string& provider) {
  static auto& known = *new std::map<std::string, Info>;  // libfabric may end before static objects
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (!library().missing.empty()) throw FabricError(library().missing);
  const auto found = known.find(provider);
  if (found != known.end()) return found->second;
  return known.emplace(provider, ask(provider, {})).first->second;
}

// Returns the first offer at `source`, or any; null if there is none.
Info find(const std::string& provider, const std::vector<std::byte>& source) {
  for (const fi_info* info = allOf(provider).get(); info != nullptr; info = info->next) {
    if (source.empty() || isOf(*info, source)) return Info(library().dupinfo(info));
  }
  return ask(provider, source);  // a new or unlisted address
}

// Returns whether the error means that the other end is gone, not a local failure.
bool meansGone(int error) {
  switch (error) {
    case FI_ECONNRESET:
    case FI_ECONNABORTED:
    case FI_ECONNREFUSED:
    case FI_ENOTCONN:
    case FI_ESHUTDOWN:
    case FI_ECANCELED:
    case FI_ETIMEDOUT:
    case FI_EHOSTUNREACH:
    case FI_ENETUNREACH:
    case EPIPE:
      return true;
    default:
      return false;
  }
}

// Returns the interface index of a link-local address; 0 for others.
uint32_t interfaceOf(const std::vector<std::byte>& source) {
  sockaddr_in6 near{};
  if (source.size() < sizeof near) return 0;
  std::memcpy(&near, source.data(), sizeof near);
  return near.sin6_family == AF_INET6 ? near.sin6_scope_id : 0;
}

std::string addressText(const fi_info& info) {
  char text[INET6_ADDRSTRLEN] = "";
  if (info.src_addr == nullptr) return "";
  if (info.addr_format == FI_SOCKADDR_IN) {
    inet_ntop(AF_INET, &static_cast<const sockaddr_in*>(info.src_addr)->sin_addr, text,
              sizeof text);
  } else if (info.addr_format == FI_SOCKADDR_IN6) {
    inet_ntop(AF_INET6, &static_cast<const sockaddr_in6*>(info.src_addr)->sin6_addr, text,
              sizeof text);
  }
  return text;
}

}  // namespace

std::string fabricMissing() { return library().missing; }

std::string fabricVersion() {
  if (!library().missing.empty()) return "";
  const uint32_t version = library().version();
  return std::to_string(FI_MAJOR(version)) + "." + std::to_string(FI_MINOR(version));
}

std::vector<std::string> fabricAddresses(const std::string& provider) {
  std::vector<std::string> addresses;
  for (const fi_info* info = allOf(provider).get(); info != nullptr; info = info->next) {
    if (std::string address = addressText(*info); !address.empty()) {
      addresses.push_back(std::move(address));
    }
  }
  return addresses;
}

struct FabricPort::State {
  std::string provider;
  Info info;
  size_t slots = 0;
  size_t slot_bytes = 0;
  // Must outlive its registrations.
  std::vector<std::byte> sends, receives;
  std::vector<fi_context2> send_contexts, receive_contexts;
  std::vector<fi_context2> write_contexts;
  std::vector<std::byte> name;
  Owned<fid_fabric> fabric;
  Owned<fid_domain> domain;
  Owned<fid_av> addresses;
  Owned<fid_cq> completions;
  Owned<fid_mr> send_memory, receive_memory;
  std::vector<Owned<fid_mr>> advertised, written;
  Owned<fid_ep> endpoint;  // closed first, to end all writes
  fi_addr_t peer = FI_ADDR_UNSPEC;
  int descriptor = -1;
  uint64_t next_key = 1;

  bool has(uint64_t mode) const { return (info->domain_attr->mr_mode & mode) != 0; }
  uint32_t interface = 0;  // of a link-local address

  void open();
  void openEndpoint();
  void throughOwnInterface(std::vector<std::byte>& theirs) const;
  Owned<fid_mr> registered(const std::byte* memory, size_t bytes, uint64_t access);
  void* localOf(const Owned<fid_mr>& memory) { return memory ? fi_mr_desc(memory.get()) : nullptr; }
  Completion completionOf(const fi_cq_data_entry& entry);
  Completion failure();
};

void FabricPort::State::open() {
  fid_fabric* opened_fabric = nullptr;
  check(provider, "fi_fabric", library().fabric(info->fabric_attr, &opened_fabric, nullptr));
  fabric.reset(opened_fabric);
  fid_domain* opened_domain = nullptr;
  check(provider, "fi_domain", fi_domain(fabric.get(), info.get(), &opened_domain, nullptr));
  domain.reset(opened_domain);
  fi_av_attr table{};
  table.type = info->domain_attr->av_type == FI_AV_MAP ? FI_AV_MAP : FI_AV_TABLE;
  table.count = 1;
  fid_av* opened_table = nullptr;
  check(provider, "fi_av_open", fi_av_open(domain.get(), &table, &opened_table, nullptr));
  addresses.reset(opened_table);
  fi_cq_attr queue{};
  queue.size = 4 * slots + 2 * write_contexts.size();
  queue.format = FI_CQ_FORMAT_DATA;
  queue.wait_obj = FI_WAIT_FD;
  fid_cq* opened_queue = nullptr;
  if (fi_cq_open(domain.get(), &queue, &opened_queue, nullptr) != 0) {
    queue.wait_obj = FI_WAIT_NONE;
    check(provider, "fi_cq_open", fi_cq_open(domain.get(), &queue, &opened_queue, nullptr));
  }
  completions.reset(opened_queue);
  if (queue.wait_obj == FI_WAIT_FD && fi_control(&completions->fid, FI_GETWAIT, &descriptor) != 0) {
    descriptor = -1;
  }
}

void FabricPort::State::openEndpoint() {
  fid_ep* opened = nullptr;
  check(provider, "fi_endpoint", fi_endpoint(domain.get(), info.get(), &opened, nullptr));
  endpoint.reset(opened);
  check(provider, "fi_ep_bind", fi_ep_bind(endpoint.get(), &addresses->fid, 0));
  check(provider, "fi_ep_bind",
        fi_ep_bind(endpoint.get(), &completions->fid, FI_TRANSMIT | FI_RECV));
  check(provider, "fi_enable", fi_enable(endpoint.get()));
  size_t bytes = kNameBytes;
  name.resize(bytes);
  check(provider, "fi_getname", fi_getname(&endpoint->fid, name.data(), &bytes));
  name.resize(bytes);
}

// A link-local address (RFC 4007) needs the index of this host's interface; the received one is the
// other end's.
void FabricPort::State::throughOwnInterface(std::vector<std::byte>& theirs) const {
  sockaddr_in6 far{};
  if (interface == 0 || info->addr_format != FI_SOCKADDR_IN6 || theirs.size() < sizeof far) return;
  std::memcpy(&far, theirs.data(), sizeof far);
  if (far.sin6_family != AF_INET6 || !IN6_IS_ADDR_LINKLOCAL(&far.sin6_addr)) return;
  far.sin6_scope_id = interface;
  std::memcpy(theirs.data(), &far, sizeof far);
}

Owned<fid_mr> FabricPort::State::registered(const std::byte* memory, size_t bytes,
                                            uint64_t access) {
  fid_mr* made = nullptr;
  const uint64_t key = has(FI_MR_PROV_KEY) ? 0 : next_key++;
  check(provider, "registering memory (the limit is that of ulimit -l)",
        fi_mr_reg(domain.get(), memory, bytes, access, 0, key, 0, &made, nullptr));
  return Owned<fid_mr>(made);
}

FabricPort::FabricPort(const PortSetup& setup) : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.info = find(setup.provider, setup.source);
  if (!state.info) {
    throw FabricError("libfabric has no provider " + setup.provider +
                      " for this link (fi_info -p " + setup.provider + " shows what it has)");
  }
  state.provider = state.info->fabric_attr->prov_name;
  state.interface = interfaceOf(setup.source);
  state.slots = setup.slots;
  state.slot_bytes = setup.slot_bytes;
  state.sends.resize(setup.slots * setup.slot_bytes);
  state.receives.resize(setup.slots * setup.slot_bytes);
  state.send_contexts.resize(setup.slots);
  state.receive_contexts.resize(setup.slots);
  state.write_contexts.resize(setup.payloads);
  state.written.resize(setup.payloads);
  state.advertised.resize(setup.payloads);
  state.open();
  if (state.has(FI_MR_LOCAL)) {
    state.send_memory = state.registered(state.sends.data(), state.sends.size(), FI_SEND);
    state.receive_memory = state.registered(state.receives.data(), state.receives.size(), FI_RECV);
  }
  state.openEndpoint();
  for (size_t i = 0; i < setup.slots; ++i) {
    if (!receive(i)) throw FabricError("libfabric (" + state.provider + "): too few receives");
  }
}

FabricPort::~FabricPort() = default;

const std::string& FabricPort::provider() const { return state_->provider; }

const std::vector<std::byte>& FabricPort::name() const { return state_->name; }

void FabricPort::connect(std::span<const std::byte> name) {
  std::vector<std::byte> theirs(name.begin(), name.end());
  state_->throughOwnInterface(theirs);
  const int added =
      fi_av_insert(state_->addresses.get(), theirs.data(), 1, &state_->peer, 0, nullptr);
  if (added != 1)
    throw FabricError("libfabric (" + state_->provider + "): no way to the other end");
}

std::byte* FabricPort::sendSlot(size_t index) {
  return state_->sends.data() + index * state_->slot_bytes;
}

const std::byte* FabricPort::receiveSlot(size_t index) const {
  return state_->receives.data() + index * state_->slot_bytes;
}

bool FabricPort::send(size_t index, size_t bytes) {
  const ssize_t result =
      fi_send(state_->endpoint.get(), sendSlot(index), bytes, state_->localOf(state_->send_memory),
              state_->peer, &state_->send_contexts[index]);
  if (result == -FI_EAGAIN) return false;
  check(state_->provider, "fi_send", result);
  return true;
}

bool FabricPort::receive(size_t index) {
  State& state = *state_;
  const ssize_t result = fi_recv(
      state.endpoint.get(), state.receives.data() + index * state.slot_bytes, state.slot_bytes,
      state.localOf(state.receive_memory), FI_ADDR_UNSPEC, &state.receive_contexts[index]);
  if (result == -FI_EAGAIN) return false;
  check(state.provider, "fi_recv", result);
  return true;
}

bool FabricPort::write(size_t index, const std::byte* from, const Advert& to, uint32_t data) {
  State& state = *state_;
  Owned<fid_mr>& memory = state.written[index];
  if (state.has(FI_MR_LOCAL)) memory = state.registered(from, to.bytes, FI_WRITE);
  const ssize_t result =
      fi_writedata(state.endpoint.get(), from, to.bytes, state.localOf(memory), data, state.peer,
                   to.address, to.key, &state.write_contexts[index]);
  if (result == 0) return true;
  memory.reset();
  if (result == -FI_EAGAIN) return false;
  check(state.provider, "fi_writedata", result);
  return true;
}

FabricPort::Advert FabricPort::advertise(size_t index, std::byte* place, size_t bytes) {
  State& state = *state_;
  Owned<fid_mr>& memory = state.advertised[index];
  memory = state.registered(place, bytes, FI_REMOTE_WRITE);
  const bool absolute = state.has(FI_MR_VIRT_ADDR);
  return {absolute ? reinterpret_cast<uintptr_t>(place) : 0, fi_mr_key(memory.get()), bytes};
}

void FabricPort::withdraw(size_t index) { state_->advertised[index].reset(); }

FabricPort::Completion FabricPort::State::completionOf(const fi_cq_data_entry& entry) {
  if ((entry.flags & FI_REMOTE_CQ_DATA) != 0 && (entry.flags & FI_RECV) == 0) {
    return {.done = Done::kPlaced, .data = entry.data};
  }
  const auto* const context = static_cast<const fi_context2*>(entry.op_context);
  const auto in = [context](const std::vector<fi_context2>& all) {
    return context >= all.data() && context < all.data() + all.size();
  };
  if (in(write_contexts)) {
    const auto index = static_cast<size_t>(context - write_contexts.data());
    written[index].reset();
    return {.done = Done::kWritten, .index = index};
  }
  if (in(send_contexts)) {
    return {.done = Done::kSent, .index = static_cast<size_t>(context - send_contexts.data())};
  }
  if (in(receive_contexts)) {
    return {.done = Done::kReceived,
            .index = static_cast<size_t>(context - receive_contexts.data()),
            .bytes = entry.len};
  }
  return {.done = Done::kFailed, .why = "libfabric (" + provider + "): an unknown completion"};
}

FabricPort::Completion FabricPort::State::failure() {
  fi_cq_err_entry error{};
  const ssize_t got = fi_cq_readerr(completions.get(), &error, 0);
  if (got < 0) error.err = static_cast<int>(-got);
  std::string why = "libfabric (" + provider + "): " + library().strerror(error.err);
  if (got > 0 && error.prov_errno != 0) {
    const char* const more =
        fi_cq_strerror(completions.get(), error.prov_errno, error.err_data, nullptr, 0);
    if (more != nullptr && *more != '\0') why += std::string(", ") + more;
  }
  return {.done = Done::kFailed, .gone = meansGone(error.err), .why = std::move(why)};
}

void FabricPort::progress(std::vector<Completion>& done) {
  std::array<fi_cq_data_entry, 16> entries;
  for (;;) {
    const ssize_t count = fi_cq_read(state_->completions.get(), entries.data(), entries.size());
    if (count == -FI_EAGAIN || count == 0) return;
    if (count < 0) {
      if (count == -FI_EAVAIL) {
        done.push_back(state_->failure());
      } else {
        done.push_back({.done = Done::kFailed,
                        .why = "libfabric (" + state_->provider +
                               "): fi_cq_read: " + library().strerror(static_cast<int>(-count))});
      }
      return;
    }
    for (ssize_t i = 0; i < count; ++i) done.push_back(state_->completionOf(entries[i]));
  }
}

int FabricPort::descriptor() const { return state_->descriptor; }

bool FabricPort::mayWait() {
  fid* waits[] = {&state_->completions->fid};
  return fi_trywait(state_->fabric.get(), waits, 1) == FI_SUCCESS;
}

#else  // without libfabric's headers

namespace {
constexpr char kMissing[] =
    "this build has no libfabric: apt-get install libfabric-dev, then build again";
}

std::string fabricMissing() { return kMissing; }
std::string fabricVersion() { return ""; }
std::vector<std::string> fabricAddresses(const std::string&) { throw FabricError(kMissing); }

struct FabricPort::State {
  std::string provider;
  std::vector<std::byte> name;
};

FabricPort::FabricPort(const PortSetup&) { throw FabricError(kMissing); }
FabricPort::~FabricPort() = default;
const std::string& FabricPort::provider() const { return state_->provider; }
const std::vector<std::byte>& FabricPort::name() const { return state_->name; }
void FabricPort::connect(std::span<const std::byte>) {}
std::byte* FabricPort::sendSlot(size_t) { return nullptr; }
const std::byte* FabricPort::receiveSlot(size_t) const { return nullptr; }
bool FabricPort::send(size_t, size_t) { return false; }
bool FabricPort::receive(size_t) { return false; }
bool FabricPort::write(size_t, const std::byte*, const Advert&, uint32_t) { return false; }
FabricPort::Advert FabricPort::advertise(size_t, std::byte*, size_t) { return {}; }
void FabricPort::withdraw(size_t) {}
void FabricPort::progress(std::vector<Completion>&) {}
int FabricPort::descriptor() const { return -1; }
bool FabricPort::mayWait() { return true; }

#endif

}  // namespace topoopt
