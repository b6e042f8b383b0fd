#include "route_control/balanced_colouring.h"

#include <array>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace topoopt {

namespace {

// One side of the graph: per copy of a vertex, the edge of each colour and the bit set of free
// colours.
class EdgeSide {
 public:
  EdgeSide(int vertices, int colours) : colours_(colours), words_((colours + 63) / 64) {
    degree_.resize(vertices);
  }

  void count(int vertex) { ++degree_[vertex]; }

  // Numbers the copies, after all edges were counted.
  void cut() {
    first_copy_.resize(degree_.size());
    int copies = 0;
    for (size_t vertex = 0; vertex < degree_.size(); ++vertex) {
      first_copy_[vertex] = copies;
      copies += (degree_[vertex] + colours_ - 1) / colours_;
      degree_[vertex] = 0;  // from now on: edges assigned to copies
    }
    edge_.assign(static_cast<size_t>(copies) * colours_, -1);
    free_.assign(static_cast<size_t>(copies) * words_, ~uint64_t{0});
    if (const int rest = colours_ % 64; rest != 0) {
      for (int copy = 0; copy < copies; ++copy) {
        free_[static_cast<size_t>(copy + 1) * words_ - 1] = (uint64_t{1} << rest) - 1;
      }
    }
  }

  // The copy of the vertex's next edge.
  int nextCopy(int vertex) { return first_copy_[vertex] + degree_[vertex]++ / colours_; }

  const uint64_t* free(int copy) const { return free_.data() + static_cast<size_t>(copy) * words_; }
  int edge(int copy, int colour) const {
    return edge_[static_cast<size_t>(copy) * colours_ + colour];
  }

  void set(int copy, int colour, int edge) {
    edge_[static_cast<size_t>(copy) * colours_ + colour] = edge;
    uint64_t& word = free_[static_cast<size_t>(copy) * words_ + colour / 64];
    const uint64_t bit = uint64_t{1} << (colour % 64);
    word = edge < 0 ? word | bit : word & ~bit;
  }

  int words() const { return words_; }

 private:
  int colours_, words_;
  std::vector<int> degree_, first_copy_, edge_;
  std::vector<uint64_t> free_;
};

class Colouring {
 public:
  Colouring(int vertices, const std::vector<std::pair<int, int>>& edges, int colours)
      : sides_{EdgeSide(vertices, colours), EdgeSide(vertices, colours)},
        ends_(edges.size()),
        colour_(edges.size(), -1) {
    for (const auto& [source, target] : edges) {
      sides_[0].count(source);
      sides_[1].count(target);
    }
    sides_[0].cut();
    sides_[1].cut();
    for (size_t i = 0; i < edges.size(); ++i) {
      ends_[i][0] = sides_[0].nextCopy(edges[i].first);
      ends_[i][1] = sides_[1].nextCopy(edges[i].second);
      add(static_cast<int>(i));
    }
  }

  std::vector<int> take() { return std::move(colour_); }

 private:
  void add(int edge) {
    const uint64_t* of_source = sides_[0].free(ends_[edge][0]);
    const uint64_t* of_target = sides_[1].free(ends_[edge][1]);
    int at_source = -1;
    int at_target = -1;
    for (int word = 0; word < sides_[0].words(); ++word) {
      if (const uint64_t both = of_source[word] & of_target[word]; both != 0) {
        return set(edge, 64 * word + std::countr_zero(both));
      }
      if (at_source < 0 && of_source[word] != 0) {
        at_source = 64 * word + std::countr_zero(of_source[word]);
      }
      if (at_target < 0 && of_target[word] != 0) {
        at_target = 64 * word + std::countr_zero(of_target[word]);
      }
    }
    flip(ends_[edge][1], at_source, at_target);
    set(edge, at_source);
  }

  // Frees colour `from` at copy `copy` of a target where `to` is free, by swapping the two along
  // the alternating path. The path cannot end at the new edge's source, which lacks colour `from`:
  // the path enters sources over such edges.
  void flip(int copy, int from, int to) {
    path_.clear();
    int side = 1;
    int wanted = from;
    for (int edge = sides_[side].edge(copy, wanted); edge >= 0;
         edge = sides_[side].edge(copy, wanted)) {
      path_.push_back(edge);
      side = 1 - side;
      copy = ends_[edge][side];
      wanted = wanted == from ? to : from;
    }
    for (int edge : path_) {
      for (int end = 0; end < 2; ++end) sides_[end].set(ends_[edge][end], colour_[edge], -1);
    }
    for (int edge : path_) set(edge, colour_[edge] == from ? to : from);
  }

  void set(int edge, int colour) {
    colour_[edge] = colour;
    for (int end = 0; end < 2; ++end) sides_[end].set(ends_[edge][end], colour, edge);
  }

  EdgeSide sides_[2];
  std::vector<std::array<int, 2>> ends_;
  std::vector<int> colour_, path_;
};

}  // namespace

std::vector<int> balancedColouring(int vertices, const std::vector<std::pair<int, int>>& edges,
                                   int colours) {
  if (colours < 1) {
    throw std::invalid_argument("colours: " + std::to_string(colours) + " is not at least 1");
  }
  for (const auto& [source, target] : edges) {
    for (int vertex : {source, target}) {
      if (vertex < 0 || vertex >= vertices) {
        throw std::invalid_argument("edges: " + std::to_string(vertex) + " is not in 0.." +
                                    std::to_string(vertices - 1));
      }
    }
  }
  return Colouring(vertices, edges, colours).take();
}

}  // namespace topoopt
