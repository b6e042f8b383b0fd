#include "backend/supervision/supervision_documents.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string_view>

#include "backend/supervision/pickle_writer.h"

namespace topoopt {
namespace {

using State = RecordedOperation::State;

// Version of PyTorch's flight recorder in torch 2.11 to 2.15; see its FlightRecorder.hpp.
constexpr char kDumpVersion[] = "2.10";
constexpr int64_t kStatusVersion = 1;
// PyTorch's analyzer merges neighbours with equal numbers into one call, also messages with
// collectives. So messages get numbers that no collective has.
constexpr int64_t kFirstMessage = int64_t{1} << 32;
constexpr size_t kMostShown = 16;  // unfinished operations in a status

// Text of another rank may be truncated inside a character.
std::string plainText(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return text;
}

std::string hostName() {
  std::string name(256, '\0');
  if (gethostname(name.data(), name.size() - 1) != 0) return "?";
  return plainText(name.c_str());
}

int64_t wallClock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string listText(const std::vector<uint64_t>& numbers) {
  std::string text = "[";
  for (const uint64_t number : numbers) {
    text += (text.size() == 1 ? "" : ", ") + std::to_string(number);
  }
  return text + "]";
}

// The phase of a recorded operation. Collectives of a group are sequential, so one has started when
// all before it have ended.
struct Phase {
  const char* name;
  int64_t started_ns;  // 0: not started
};

class Phases {
 public:
  // Must be called in the order of the calls.
  Phase of(const RecordedOperation& operation) {
    if (operation.message) return phase(operation, operation.called_ns);
    Last& last = last_[operation.group.get()];
    if (last.waiting) return {"scheduled", 0};
    last.waiting = operation.state != State::kCompleted;
    const int64_t started_ns = std::max(operation.called_ns, last.ended_ns);
    last.ended_ns = operation.ended_ns;
    return phase(operation,
                 std::min(started_ns, operation.ended_ns ? operation.ended_ns : started_ns));
  }

 private:
  struct Last {
    bool waiting = false;
    int64_t ended_ns = 0;
  };

  static Phase phase(const RecordedOperation& operation, int64_t started_ns) {
    return {operation.state == State::kCompleted ? "completed" : "started", started_ns};
  }

  std::map<const RecordedGroup*, Last> last_;
};

void writeTensors(PickleWriter& out, const char* sizes_key, const char* types_key,
                  const RecordedTensors& tensors) {
  out.text(sizes_key);
  out.beginList();
  for (const auto& sizes : tensors.sizes()) {
    out.beginList();
    for (const int64_t size : sizes) out.integer(size);
    out.endList();
  }
  out.endList();
  out.text(types_key);
  out.beginList();
  for (const char* type : tensors.types()) out.text(type);
  out.endList();
}

void writeTime(PickleWriter& out, const char* key, int64_t time_ns, int64_t since_epoch_ns) {
  out.text(key);
  if (time_ns > 0) {
    out.integer(time_ns + since_epoch_ns);
  } else {
    out.none();
  }
}

std::string nameOf(const RecordedOperation& operation, const SupervisedRank& of) {
  std::string name = of.library + ":" + operation.name;
  if (!operation.message) return name;
  const std::string sender =
      operation.sender >= 0 ? std::to_string(operation.sender) : of.any_sender;
  const std::string receiver = std::to_string(operation.receiver);
  const bool sends = std::string_view(operation.name) == "send";
  return name + " " + (sends ? sender + "->" + receiver : receiver + "<-" + sender);
}

// `since_epoch_ns`: wall clock minus steady clock.
void writeEntry(PickleWriter& out, const RecordedOperation& operation, const Phase& phase,
                const SupervisedRank& of, int64_t since_epoch_ns) {
  out.beginDict();
  out.field("record_id", operation.id);
  out.field("pg_id", operation.group->number);
  out.text("process_group");
  out.texts(operation.group->name, operation.group->description);
  out.field("collective_seq_id", operation.collective);
  out.field("p2p_seq_id", operation.message ? kFirstMessage + static_cast<int64_t>(operation.number)
                                            : int64_t{0});
  out.field("op_id", operation.collective + operation.number);
  out.field("profiling_name", nameOf(operation, of));
  out.field("time_created_ns", operation.called_ns + since_epoch_ns);
  const bool completed = operation.state == State::kCompleted;
  if (completed) {
    out.field("duration_ms", static_cast<double>(operation.ended_ns - phase.started_ns) / 1e6);
  }
  writeTensors(out, "input_sizes", "input_dtypes", operation.inputs);
  writeTensors(out, "output_sizes", "output_dtypes", operation.outputs);
  out.field("state", phase.name);
  writeTime(out, "time_discovered_started_ns", phase.started_ns, since_epoch_ns);
  writeTime(out, "time_discovered_completed_ns", completed ? operation.ended_ns : 0,
            since_epoch_ns);
  out.field("retired", operation.ended_ns > 0);
  out.field("timeout_ms", operation.limit_ms);
  out.field("is_p2p", operation.message);
  out.text("topoopt");
  out.beginDict();
  out.field("failed", operation.state == State::kFailed);
  out.field("bytes", operation.bytes);
  out.field("root", operation.root);
  if (operation.message) {
    out.field("sender", operation.sender);
    out.field("receiver", operation.receiver);
    out.field("tag", operation.tag);
    out.field("in_flow", operation.in_flow);
  }
  out.endDict();
  out.endDict();
}

void writeGroups(PickleWriter& out, const FlightRecorder& recorder) {
  const auto groups = recorder.groups();
  std::map<std::string, const RecordedGroup*> by_name;  // the last group of each name
  for (const auto& group : groups) by_name[group->name] = group.get();
  out.text("pg_config");
  out.beginDict();
  for (const auto& [name, group] : by_name) {
    out.text(name);
    out.beginDict();
    out.field("name", name);
    out.field("desc", group->description);
    out.field("ranks", listText(group->ranks));
    out.endDict();
  }
  out.endDict();
}

// Numbers of each group's last called, started and completed collective; 0: none known.
void writeProgress(PickleWriter& out, const FlightRecorder& recorder,
                   const std::vector<RecordedOperation>& operations) {
  struct Progress {
    uint64_t started = 0;
    uint64_t completed = 0;
  };
  std::map<int, Progress> progress;
  Phases phases;
  for (const RecordedOperation& operation : operations) {
    const Phase phase = phases.of(operation);
    if (operation.message || phase.started_ns == 0) continue;
    Progress& of_group = progress[operation.group->number];
    of_group.started = operation.collective;
    if (operation.state == State::kCompleted) of_group.completed = operation.collective;
  }
  out.text("pg_status");
  out.beginDict();
  for (const auto& group : recorder.groups()) {
    out.text(std::to_string(group->number));
    out.beginDict();
    out.field("last_enqueued_collective", group->collectives());
    out.field("last_started_collective", progress[group->number].started);
    out.field("last_completed_collective", progress[group->number].completed);
    out.endDict();
  }
  out.endDict();
}

void writePlace(PickleWriter& out, const SupervisedRank& of) {
  out.field("rank", of.rank);
  out.field("world_size", of.world_size);
  out.field("server", of.server);
  out.field("attempt", of.attempt);
  out.field("host", hostName());
  out.field("pid", static_cast<int64_t>(getpid()));
  out.field("time_ns", wallClock());
}

// With the traffic since the previous reading.
void writeLinks(PickleWriter& out, const LinkReadings& readings) {
  const std::vector<LinkTraffic>& links = readings.now;
  const std::vector<LinkTraffic>& before = readings.before;
  const double seconds = readings.seconds;
  out.text("links");
  out.beginList();
  for (size_t i = 0; i < links.size(); ++i) {
    const LinkTraffic& link = links[i];
    out.beginDict();
    out.field("source", link.source);
    out.field("source_port", link.source_port);
    out.field("target", link.target);
    out.field("target_port", link.target_port);
    out.field("kind", kindName(link.kind));
    out.field("sends", link.sends);
    out.field("up", link.up);
    out.field("sent_bytes", link.sent_bytes);
    out.field("relayed_bytes", link.relayed_bytes);
    out.field("received_bytes", link.received_bytes);
    out.field("overhead_bytes", link.overhead_bytes);
    out.field("relay_peak_bytes", link.relay_peak_bytes);
    out.field("seconds", link.seconds);
    const bool known = before.size() == links.size() && seconds > 0;
    const auto bytes = [](const LinkTraffic& of) { return of.sent_bytes + of.overhead_bytes; };
    out.field("gbps",
              known ? static_cast<double>(bytes(link) - bytes(before[i])) * 8e-9 / seconds : 0.0);
    out.field("busy", known ? (link.seconds - before[i].seconds) / seconds : 0.0);
    out.endDict();
  }
  out.endList();
}

}  // namespace

std::string dumpDocument(const SupervisedRank& of, const FlightRecorder& recorder,
                         const LinkReadings& links, const std::string& why) {
  const std::vector<RecordedOperation> operations = recorder.operations();
  const int64_t since_epoch_ns = wallClock() - FlightRecorder::now();
  PickleWriter out;
  out.beginDict();
  out.field("version", kDumpVersion);
  out.field("comm_lib_version", "topoopt");
  writeGroups(out, recorder);
  writeProgress(out, recorder, operations);
  out.text("entries");
  out.beginList();
  Phases phases;
  for (const RecordedOperation& operation : operations) {
    writeEntry(out, operation, phases.of(operation), of, since_epoch_ns);
  }
  out.endList();
  out.text("topoopt");
  out.beginDict();
  writePlace(out, of);
  out.field("why", plainText(why));
  out.field("operations_called", recorder.recorded());
  writeLinks(out, links);
  out.endDict();
  out.endDict();
  return out.finish();
}

std::string statusDocument(const SupervisedRank& of, const FlightRecorder* recorder,
                           const LinkReadings& links, uint64_t iteration, const std::string& why) {
  std::vector<RecordedOperation> unfinished;
  if (recorder != nullptr) unfinished = recorder->unfinished();
  const int64_t now_ns = FlightRecorder::now();
  PickleWriter out;
  out.beginDict();
  out.field("version", kStatusVersion);
  writePlace(out, of);
  out.field("failure", plainText(why));
  out.field("iteration", iteration);
  out.field("operations_called", recorder == nullptr ? uint64_t{0} : recorder->recorded());
  out.field("operations_unfinished", static_cast<uint64_t>(unfinished.size()));
  unfinished.resize(std::min(unfinished.size(), kMostShown));
  out.text("operations");
  out.beginList();
  Phases phases;
  for (const RecordedOperation& operation : unfinished) {
    out.beginDict();
    out.field("name", nameOf(operation, of).substr(of.library.size() + 1));
    out.field("group", operation.group->name);
    out.field("collective", operation.message ? uint64_t{0} : operation.collective);
    out.field("state", phases.of(operation).name);
    out.field("seconds", static_cast<double>(now_ns - operation.called_ns) * 1e-9);
    out.field("bytes", operation.bytes);
    out.endDict();
  }
  out.endList();
  writeLinks(out, links);
  out.endDict();
  return out.finish();
}

}  // namespace topoopt
