#include "plan/linear_program.h"

#include <cmath>
#include <cstddef>
#include <utility>

namespace topoopt {
namespace {

constexpr double kNothing = 1e-9;
// Different limits for equal rows, so that a pivot seldom leaves the objective as it is.
constexpr double kPerturbation = 1e-7;
// Pivots by the largest gain; afterwards Bland's rule, which is slower and always ends.
constexpr size_t kFastPivotsPerRow = 20;

// The rows that are not 0, and the variables that are, exchange places in pivots. A row's last
// number is its value; the last row is the objective.
class Tableau {
 public:
  explicit Tableau(const LinearProgram& program)
      : table_(program.rows), columns_(program.objective.size()) {
    const auto all = static_cast<double>(table_.size());
    for (size_t r = 0; r < table_.size(); ++r) {
      table_[r].push_back(program.limits[r] + kPerturbation * static_cast<double>(r + 1) / all);
      row_.push_back(columns_ + r);
    }
    table_.push_back(program.objective);
    table_.back().push_back(0);
    for (size_t c = 0; c < columns_; ++c) column_.push_back(c);
  }

  std::vector<double> solve() {
    const size_t fast = kFastPivotsPerRow * row_.size();
    for (size_t pivots = 0;; ++pivots) {
      const size_t column = entering(pivots < fast);
      if (column == columns_) break;
      const size_t row = leaving(column);
      if (row == row_.size()) break;
      pivot(row, column);
    }
    std::vector<double> x(columns_, 0.0);
    for (size_t r = 0; r < row_.size(); ++r) {
      if (row_[r] < columns_) x[row_[r]] = table_[r].back();
    }
    return x;
  }

 private:
  size_t entering(bool fast) const {
    size_t best = columns_;
    for (size_t c = 0; c < columns_; ++c) {
      if (table_.back()[c] <= kNothing) continue;
      const bool better = best == columns_ || (fast ? table_.back()[c] > table_.back()[best]
                                                    : column_[c] < column_[best]);
      if (better) best = c;
    }
    return best;
  }

  size_t leaving(size_t column) const {
    size_t best = row_.size();
    double least = 0;
    for (size_t r = 0; r < row_.size(); ++r) {
      if (table_[r][column] <= kNothing) continue;
      const double ratio = table_[r].back() / table_[r][column];
      if (best < row_.size() && (ratio > least || (ratio == least && row_[r] > row_[best]))) {
        continue;
      }
      best = r;
      least = ratio;
    }
    return best;
  }

  void pivot(size_t row, size_t column) {
    std::vector<double>& through = table_[row];
    const double inverse = 1 / through[column];
    through[column] = 1;
    for (double& value : through) value *= inverse;
    for (std::vector<double>& other : table_) {
      const double factor = other[column];
      if (&other == &through || factor == 0) continue;
      other[column] = 0;
      for (size_t c = 0; c < other.size(); ++c) other[c] -= factor * through[c];
    }
    std::swap(row_[row], column_[column]);
  }

  std::vector<std::vector<double>> table_;
  const size_t columns_;
  std::vector<size_t> row_;     // variable of each row
  std::vector<size_t> column_;  // variable of each column
};

}  // namespace

std::vector<double> maximised(const LinearProgram& program) { return Tableau(program).solve(); }

}  // namespace topoopt
