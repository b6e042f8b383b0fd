// Requests the state of other members, so that a timeout error can name the missing ranks.

#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "transport/endpoint/endpoint.h"

namespace topoopt {

// Reactor thread only; call cancel() before destruction.
class StateSurveys {
 public:
  struct Answer {
    uint64_t called = 0;  // collectives of the group so far
    std::string state;    // "is in barrier (operation 3)", "has not created the group", ...
  };
  // By rank of the endpoint; nullopt: no answer in time.
  using Answers = std::map<int, std::optional<Answer>>;
  using Done = std::function<void(const Answers&)>;

  StateSurveys(Endpoint& endpoint, uint32_t channel) : endpoint_(endpoint), channel_(channel) {}

  // `done` is called later, when all have answered or kSurveyLimit expires.
  void request(const std::vector<int>& ranks, Done done);
  void onAnswer(int rank, Answer answer);
  void cancel();

 private:
  struct Survey {
    Answers answers;
    size_t awaited = 0;
    std::optional<Reactor::TimerId> timer;
    Done done;
  };

  void finish(std::list<Survey>::iterator survey);

  Endpoint& endpoint_;
  const uint32_t channel_;
  std::list<Survey> surveys_;
};

}  // namespace topoopt
