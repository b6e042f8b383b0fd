// A group whose members share memory: its collectives run in a LocalTeam instead of over links.

#include <utility>

#include "collectives/group.h"

namespace topoopt {

void Group::runLocally(const std::string& name, uint64_t arguments, const CallTerms& terms,
                       Done done, std::function<void(LocalTeam&, const CollectiveCall&)> body) {
  turns_->submit(
      [self = shared_from_this(), name, arguments, limit = terms.limit, done = std::move(done),
       body = std::move(body)](uint64_t number) {
        if (const auto error = self->error()) return done(error);
        const CollectiveCall call{name, number, fingerprintOf(name, number, arguments), limit};
        try {
          body(*self->team_, call);
        } catch (const std::exception& exception) {
          const std::exception_ptr here = std::current_exception();
          const std::exception_ptr before = self->error();  // what made the team stop, if known
          if (before) return done(before);
          // At once: who hears of this failure finds the team failed. The first one tells the
          // others.
          const bool first = self->team_->fail(self->ownFailure(exception.what()));
          self->failSoon(here, first ? Spread::kEverywhere : Spread::kHere);
          return done(here);
        }
        done(nullptr);
      },
      terms.synchronous);
}

void Group::endTeam(const std::string& why, Spread spread) {
  if (spread == Spread::kGoodbye) return team_->leave();
  team_->fail(spread == Spread::kEverywhere ? ownFailure(why) : why);
}

std::string Group::ownFailure(const std::string& why) const {
  return "rank " + std::to_string(config_.ranks[config_.rank]) + " failed: " + why;
}

}  // namespace topoopt
