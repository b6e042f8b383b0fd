#include "search/chains/descent.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace topoopt {
namespace {

constexpr double kGain = 1e-4;  // least relative gain of an accepted change

}  // namespace

Descent::Descent(std::unique_ptr<FlowPricing> pricing, const SearchSpace& space,
                 const std::vector<Placement>& start, int64_t memory_limit_bytes,
                 int64_t max_transfers)
    : pricing_(std::move(pricing)),
      neighbourhood_(pricing_->costs(), space),
      blocks_(blocksOf(pricing_->costs().job(), space.kind_of_operator)),
      limits_(pricing_->costs(), memory_limit_bytes, max_transfers),
      strategy_(pricing_->costs().intern(start)),
      proposal_(strategy_) {
  if (!limits_.start(strategy_)) throw std::invalid_argument("start: does not fit into memory");
  seconds_ = pricing_->run(strategy_);
  begin(0);
}

std::vector<Placement> Descent::best() const {
  std::vector<Placement> found;
  for (int id : strategy_) found.push_back(pricing_->costs().placements()[id]);
  return found;
}

// Lists changes of the current strategy, from those of operator `first` on.
void Descent::begin(int first) {
  changes_ = neighbourhood_.changes(strategy_);
  const auto at = std::find_if(
      changes_.begin(), changes_.end(),
      [first](const PlacementChange& change) { return change.operators.front() >= first; });
  next_ = at == changes_.end() ? 0 : at - changes_.begin();
  tried_ = 0;
}

// Returns whether the proposal, which differs in `changed_`, is faster.
bool Descent::helps() {
  if (changed_.empty() || !limits_.fits(proposal_, changed_)) return false;
  const double infinity = std::numeric_limits<double>::infinity();
  const double seconds = pricing_->propose(proposal_, changed_, infinity);
  if (seconds >= seconds_ * (1 - kGain)) return false;
  seconds_ = seconds;
  return true;
}

void Descent::keep() {
  pricing_->accept();
  limits_.accept();
  for (int op : changed_) strategy_[op] = proposal_[op];
}

void Descent::restore() {
  for (int op : changed_) proposal_[op] = strategy_[op];
}

void Descent::step(int evaluations, double slack) {
  checkEvaluations(evaluations);
  pricing_->setSlack(slack);
  for (int i = 0; i < evaluations && !done(); ++i) {
    ++evaluations_;
    const PlacementChange& change = changes_[next_];
    neighbourhood_.apply(change, proposal_, changed_);
    if (!helps()) {
      restore();
      ++tried_;
      next_ = (next_ + 1) % changes_.size();
      continue;
    }
    keep();
    blocks_tried_ = 0;
    begin(change.operators.front());
  }
}

// No effect if an operator does not allow its new placement.
void Descent::apply(const Block& block) {
  changed_.clear();
  for (int i = 0; i < block.length; ++i) {
    const int op = block.to + i, id = strategy_[block.from + i];
    if (id == strategy_[op]) continue;
    if (!neighbourhood_.allows(op, id)) {
      restore();
      changed_.clear();
      return;
    }
    proposal_[op] = id;
    changed_.push_back(op);
  }
}

void Descent::stepBlocks(int evaluations, double slack) {
  checkEvaluations(evaluations);
  pricing_->setSlack(slack);
  for (int i = 0; i < evaluations && !blocksDone(); ++i) {
    ++evaluations_;
    apply(blocks_[next_block_]);
    next_block_ = (next_block_ + 1) % blocks_.size();
    if (helps()) {
      keep();
      blocks_tried_ = 0;
      begin(0);
    } else {
      restore();
      ++blocks_tried_;
    }
  }
}

}  // namespace topoopt
