#include "collectives/group/pending_messages.h"

#include <utility>

namespace topoopt {

uint64_t PendingMessages::add(Message message, std::function<void(uint64_t number)> late) {
  const uint64_t number = next_++;
  Entry& entry = entries_.emplace_hint(entries_.end(), number, Entry{std::move(message)})->second;
  if (entry.message.limit.count() > 0) {
    entry.timer =
        reactor_.after(entry.message.limit, [number, late = std::move(late)] { late(number); });
  }
  return number;
}

const PendingMessages::Message* PendingMessages::find(uint64_t number) const {
  const auto found = entries_.find(number);
  return found == entries_.end() ? nullptr : &found->second.message;
}

void PendingMessages::finish(uint64_t number) {
  end(std::move(entries_.extract(number).mapped()), nullptr);
}

// Moved out first: messages that a callback adds must not fail.
void PendingMessages::failAll(std::exception_ptr error) {
  for (auto& [number, entry] : std::exchange(entries_, {})) end(std::move(entry), error);
}

void PendingMessages::end(Entry entry, std::exception_ptr error) {
  if (entry.timer) reactor_.cancel(*entry.timer);
  entry.message.done(error);
}

std::vector<std::string> PendingMessages::texts(size_t most) const {
  std::vector<std::string> texts;
  for (const auto& [number, entry] : entries_) {
    if (texts.size() == most) break;
    texts.push_back(entry.message.text);
  }
  return texts;
}

}  // namespace topoopt
