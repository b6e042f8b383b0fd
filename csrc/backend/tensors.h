// From tensors to plain memory: checks, element types, reductions.

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

// What a c10d reduction means for the elements of one tensor: multiply by `factor`, reduce, divide
// by `divisor`.
struct Reduction {
  DataType type;
  ReduceOp op;
  std::optional<at::Tensor> factor{};
  double divisor = 1;
  CalledOp called = CalledOp::kNone;  // if it is not `op`
};

// Each raises ValueError or TypeError naming `what`, the operation, and the offending argument.
void checkOne(const std::vector<at::Tensor>& tensors, const char* what);
void checkSameType(const at::Tensor& a, const at::Tensor& b, const char* what);

// Complex numbers as pairs of real ones, if `op` allows it (sums and averages do).
at::Tensor asReal(const at::Tensor& tensor, const c10d::ReduceOp& op);

// Over `size` ranks. The sum of 16-bit floats may overflow where their average does not: they are
// first multiplied by the power of two that makes up for their number, which changes no digit of a
// normal number, and divided by what is left of it.
Reduction reductionOf(const at::Tensor& tensor, const c10d::ReduceOp& op, int size);

// Of the elements of any tensor, for others to compare.
DataType elementTypeOf(const at::Tensor& tensor);

// A contiguous uninitialised 1-d tensor with the type of `like`.
at::Tensor flatLike(const at::Tensor& like, int64_t elements);

std::byte* bytesOf(const at::Tensor& tensor);
bool overlap(const at::Tensor& a, const at::Tensor& b);  // in memory; both are contiguous
void copyBytes(std::byte* to, const std::byte* from, size_t bytes);  // the ranges may overlap

// The elements of all tensors, one after the other, in a new tensor.
at::Tensor flatten(at::TensorList tensors);

// Copies consecutive parts of `flat` to the tensors, in order.
void unflatten(const at::Tensor& flat, at::TensorList tensors);

bool sameSizes(const std::vector<at::Tensor>& tensors);
std::vector<size_t> sizesInElements(const std::vector<at::Tensor>& tensors);
std::vector<size_t> sizesInBytes(const std::vector<at::Tensor>& tensors);

// Of an all_to_all_single: the bytes of each of `size` blocks of `tensor` along its first
// dimension; no splits means equal blocks. `which` of the two tensors it is, for messages.
std::vector<size_t> splitBytes(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                               int size, const char* which);

}  // namespace topoopt
