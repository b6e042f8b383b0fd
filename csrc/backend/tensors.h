// Maps tensors to plain memory: checks, element types, reductions.

#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "collectives/group/called.h"
#include "common/reduce.h"

namespace topoopt {

// A c10d reduction of a tensor's elements: multiply by `factor`, reduce, divide by `divisor`.
struct Reduction {
  DataType type;
  ReduceOp op;
  std::optional<at::Tensor> factor{};
  double divisor = 1;
  CalledOp called = CalledOp::kNone;  // if it differs from `op`
};

// Both raise ValueError or TypeError with the operation `what` and the offending argument.
void checkOne(const std::vector<at::Tensor>& tensors, const char* what);
void checkSameType(const at::Tensor& a, const at::Tensor& b, const char* what);

// Views complex numbers as pairs of real ones, if `op` allows it (sums and averages do).
at::Tensor asReal(const at::Tensor& tensor, const c10d::ReduceOp& op);

// Over `size` ranks. The sum of 16-bit floats may overflow where their average does not. So they
// are first divided by a power of two, exactly for normal numbers, and the sum by the rest.
Reduction reductionOf(const at::Tensor& tensor, const c10d::ReduceOp& op, int size);

// The type of a tensor's elements, for comparison by other members.
DataType elementTypeOf(const at::Tensor& tensor);

// Returns a contiguous uninitialised 1-d tensor with the type of `like`.
at::Tensor flatLike(const at::Tensor& like, int64_t elements);

std::byte* bytesOf(const at::Tensor& tensor);
bool overlap(const at::Tensor& a, const at::Tensor& b);  // in memory; both are contiguous
void copyBytes(std::byte* to, const std::byte* from, size_t bytes);  // the ranges may overlap

// Returns a new tensor with the elements of all tensors in order.
at::Tensor flatten(at::TensorList tensors);

// Copies consecutive parts of `flat` to the tensors, in order.
void unflatten(const at::Tensor& flat, at::TensorList tensors);

bool sameSizes(const std::vector<at::Tensor>& tensors);
std::vector<size_t> sizesInElements(const std::vector<at::Tensor>& tensors);
std::vector<size_t> sizesInBytes(const std::vector<at::Tensor>& tensors);

// The bytes of each of an all_to_all_single's `size` blocks along the first dimension; no splits:
// equal blocks. `which` names the tensor in messages.
std::vector<size_t> splitBytes(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                               int size, const char* which);

}  // namespace topoopt
