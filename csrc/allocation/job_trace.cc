#include "allocation/job_trace.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

#include "common/random.h"

namespace topoopt {
namespace {

SubMesh findJob(const BoardMesh& mesh, const std::vector<BoardShape>& shapes, Fit fit) {
  for (BoardShape shape : shapes) {
    SubMesh found = mesh.find(shape, fit, 1);
    if (!found.empty()) return found;
  }
  return {};
}

int boardsOf(const std::vector<BoardShape>& shapes) {
  return shapes.empty() ? 0 : shapes.front().boards();
}

// Selects the jobs that a round removes: those in some rows or columns with free boards.
std::vector<int> victims(const BoardMesh& mesh, const std::vector<SubMesh>& placed,
                         Random& random) {
  std::vector<int> open_rows;
  for (int row = 0; row < mesh.rows(); ++row) {
    for (int column = 0; column < mesh.columns(); ++column) {
      if (mesh.isFree(row, column)) {
        open_rows.push_back(row);
        break;
      }
    }
  }
  std::vector<int> near;
  std::vector<int> wanted;
  const int bands = 1 + random.below(3);
  for (int i = 0; i < bands; ++i) {
    wanted.push_back(i == 0 && !open_rows.empty()
                         ? open_rows[random.below(static_cast<int>(open_rows.size()))]
                         : random.below(mesh.rows()));
  }
  for (size_t job = 0; job < placed.size(); ++job) {
    const auto& rows = placed[job].rows;
    if (std::any_of(wanted.begin(), wanted.end(),
                    [&](int row) { return std::binary_search(rows.begin(), rows.end(), row); })) {
      near.push_back(static_cast<int>(job));
    }
  }
  const int count = 1 + random.below(8);
  while (static_cast<int>(near.size()) > count) {
    near.erase(near.begin() + random.below(static_cast<int>(near.size())));
  }
  return near;
}

}  // namespace

std::vector<SubMesh> allocateInOrder(BoardMesh& mesh, const JobKinds& jobs,
                                     const std::vector<int>& order, Fit fit, int per_leaf) {
  std::vector<SubMesh> placed(jobs.jobs());
  // Free boards only decrease, so the last job with equal shapes is an upper bound.
  const std::vector<BoardShape>* last = nullptr;
  double enough = 0;
  for (int job : order) {
    if (job < 0 || job >= static_cast<int>(jobs.jobs()) || !placed[job].empty()) {
      throw std::invalid_argument("order: not every job once");
    }
    const std::vector<BoardShape>& shapes = jobs.shapesOf(job);
    if (boardsOf(shapes) > mesh.freeBoards()) continue;
    if (fit != Fit::kLocal) {
      placed[job] = findJob(mesh, shapes, fit);
    } else {
      if (last == nullptr || (&shapes != last && shapes != *last)) enough = 0;
      last = &shapes;
      placed[job] = mesh.findLocal(shapes, per_leaf, enough);
      enough = std::max(enough, BoardMesh::upperShare(placed[job], per_leaf));
    }
    mesh.take(placed[job]);
  }
  return placed;
}

void improveAllocation(BoardMesh& mesh, const JobKinds& jobs, std::vector<SubMesh>& placed,
                       int rounds, uint64_t seed) {
  Random random(seed);
  std::vector<int> waiting;
  for (size_t job = 0; job < jobs.jobs(); ++job) {
    if (placed[job].empty()) waiting.push_back(static_cast<int>(job));
  }
  for (int round = 0; round < rounds && !waiting.empty() && mesh.freeBoards() > 0; ++round) {
    const int free_before = mesh.freeBoards();
    const std::vector<int> taken = victims(mesh, placed, random);
    std::vector<std::pair<int, SubMesh>> before;
    for (int job : taken) {
      mesh.release(placed[job]);
      before.emplace_back(job, std::exchange(placed[job], {}));
    }
    // Jobs without boards that may fit now, and the removed ones: largest first, slightly shuffled,
    // each starting at a random shape.
    std::vector<std::pair<int, int>> again;  // (weight, job)
    for (const auto& list : {waiting, taken}) {
      for (int job : list) {
        const int boards = boardsOf(jobs.shapesOf(job));
        if (boards == 0 || boards > mesh.freeBoards()) continue;
        again.emplace_back(boards * (64 + random.below(64)), job);
      }
    }
    std::sort(again.begin(), again.end(), std::greater<>());
    std::vector<int> fresh;
    for (const auto& [weight, job] : again) {
      if (boardsOf(jobs.shapesOf(job)) > mesh.freeBoards()) continue;
      std::vector<BoardShape> shapes = jobs.shapesOf(job);
      std::rotate(shapes.begin(), shapes.begin() + random.below(static_cast<int>(shapes.size())),
                  shapes.end());
      placed[job] = findJob(mesh, shapes, random.below(2) == 0 ? Fit::kTight : Fit::kAllStarts);
      if (placed[job].empty()) continue;
      mesh.take(placed[job]);
      fresh.push_back(job);
    }
    if (mesh.freeBoards() <= free_before) {
      waiting.erase(std::remove_if(waiting.begin(), waiting.end(),
                                   [&](int job) { return !placed[job].empty(); }),
                    waiting.end());
      for (int job : taken) {
        if (placed[job].empty()) waiting.push_back(job);
      }
      continue;
    }
    for (int job : fresh) mesh.release(std::exchange(placed[job], {}));
    for (auto& [job, old] : before) {
      mesh.take(old);
      placed[job] = std::move(old);
    }
  }
}

}  // namespace topoopt
