#include "collectives/group/state_surveys.h"

#include <utility>

namespace topoopt {
namespace {

// The reactor answers even if the rank's own threads are blocked.
constexpr std::chrono::milliseconds kSurveyLimit{500};

}  // namespace

void StateSurveys::request(const std::vector<int>& ranks, Done done) {
  const auto survey = surveys_.insert(surveys_.end(), {{}, 0, {}, std::move(done)});
  for (const int rank : ranks) {
    if (!survey->answers.emplace(rank, std::nullopt).second) continue;
    ++survey->awaited;
    FrameHeader header;
    header.type = FrameType::kStateRequest;
    header.channel = channel_;
    endpoint_.sendControl(rank, header, "");
  }
  const auto limit = survey->awaited > 0 ? kSurveyLimit : std::chrono::milliseconds(0);
  survey->timer = endpoint_.reactor().after(limit, [this, survey] {
    survey->timer.reset();
    finish(survey);
  });
}

void StateSurveys::onAnswer(int rank, Answer answer) {
  for (auto next = surveys_.begin(); next != surveys_.end();) {
    const auto survey = next++;
    const auto awaited = survey->answers.find(rank);
    if (awaited == survey->answers.end() || awaited->second) continue;
    awaited->second = answer;
    if (--survey->awaited > 0) continue;
    endpoint_.reactor().cancel(*survey->timer);
    survey->timer = endpoint_.reactor().after(std::chrono::milliseconds(0), [this, survey] {
      survey->timer.reset();
      finish(survey);
    });
  }
}

void StateSurveys::finish(std::list<Survey>::iterator survey) {
  const Survey ended = std::move(*survey);
  surveys_.erase(survey);
  ended.done(ended.answers);
}

void StateSurveys::cancel() {
  for (const Survey& survey : surveys_) {
    if (survey.timer) endpoint_.reactor().cancel(*survey.timer);
  }
  surveys_.clear();
}

}  // namespace topoopt
