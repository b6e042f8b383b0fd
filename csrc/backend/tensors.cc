#include "backend/tensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace topoopt {
namespace {

// kBytes for unnamed types.
DataType namedType(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return DataType::kUint8;
    case at::kChar:
      return DataType::kInt8;
    case at::kShort:
      return DataType::kInt16;
    case at::kInt:
      return DataType::kInt32;
    case at::kLong:
      return DataType::kInt64;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kBFloat16:
      return DataType::kBfloat16;
    case at::kFloat:
      return DataType::kFloat32;
    case at::kDouble:
      return DataType::kFloat64;
    case at::kBool:
      return DataType::kBool;
    case at::kUInt16:
      return DataType::kUint16;
    case at::kUInt32:
      return DataType::kUint32;
    case at::kUInt64:
      return DataType::kUint64;
    case at::kComplexHalf:
      return DataType::kComplex32;
    case at::kComplexFloat:
      return DataType::kComplex64;
    case at::kComplexDouble:
      return DataType::kComplex128;
    case at::kFloat8_e5m2:
      return DataType::kFloat8E5M2;
    case at::kFloat8_e4m3fn:
      return DataType::kFloat8E4M3Fn;
    case at::kFloat8_e5m2fnuz:
      return DataType::kFloat8E5M2Fnuz;
    case at::kFloat8_e4m3fnuz:
      return DataType::kFloat8E4M3Fnuz;
    case at::kFloat8_e8m0fnu:
      return DataType::kFloat8E8M0Fnu;
    default:
      return DataType::kBytes;
  }
}

DataType reducibleType(const at::Tensor& tensor) {
  const DataType type = namedType(tensor.scalar_type());
  TORCH_CHECK_TYPE(type <= DataType::kBool, "topoopt cannot reduce tensors of type ",
                   tensor.scalar_type(),
                   "; it can move them, but sums need a standard integer or float type");
  return type;
}

Reduction averageOf(DataType type, int size) {
  TORCH_CHECK_TYPE(type != DataType::kBool, "ReduceOp.AVG is not defined for booleans");
  Reduction reduction{.type = type,
                      .op = ReduceOp::kSum,
                      .divisor = static_cast<double>(size),
                      .called = CalledOp::kAverage};
  if (type == DataType::kFloat16 || type == DataType::kBfloat16) {
    const auto power = static_cast<double>(std::bit_ceil(static_cast<unsigned>(size)));
    reduction.factor = at::scalar_tensor(1 / power, at::kFloat);
    reduction.divisor /= power;
  }
  return reduction;
}

ReduceOp bitwise(const at::Tensor& tensor, ReduceOp op, const char* name) {
  TORCH_CHECK_TYPE(!tensor.is_floating_point(), "ReduceOp.", name, " needs integers, not ",
                   tensor.scalar_type());
  return op;
}

at::Tensor premultiplier(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.is_floating_point(), "ReduceOp.PREMUL_SUM needs floats, not ",
                   tensor.scalar_type());
  const auto* supplement = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "ReduceOp.PREMUL_SUM carries no factor");
  if (supplement->tensor_factor.defined()) return supplement->tensor_factor.to(tensor.options());
  return at::scalar_tensor(supplement->double_factor, tensor.options());
}

}  // namespace

void checkOne(const std::vector<at::Tensor>& tensors, const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "topoopt: ", what, " takes one tensor, got ",
                    tensors.size());
}

void checkSameType(const at::Tensor& a, const at::Tensor& b, const char* what) {
  TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), "topoopt: ", what,
                   " needs tensors of one type, got ", a.scalar_type(), " and ", b.scalar_type());
}

at::Tensor asReal(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (!tensor.is_complex()) return tensor;
  TORCH_CHECK_TYPE(c10d::isComplexViewAsRealAllowed(op),
                   "topoopt: this reduction is not defined for complex numbers");
  return at::view_as_real(tensor);
}

DataType elementTypeOf(const at::Tensor& tensor) { return namedType(tensor.scalar_type()); }

Reduction reductionOf(const at::Tensor& tensor, const c10d::ReduceOp& op, int size) {
  const DataType type = reducibleType(tensor);
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {type, ReduceOp::kSum};
    case c10d::ReduceOp::AVG:
      return averageOf(type, size);
    case c10d::ReduceOp::PRODUCT:
      return {type, ReduceOp::kProduct};
    case c10d::ReduceOp::MIN:
      return {type, ReduceOp::kMin};
    case c10d::ReduceOp::MAX:
      return {type, ReduceOp::kMax};
    case c10d::ReduceOp::BAND:
      return {type, bitwise(tensor, ReduceOp::kBitAnd, "BAND")};
    case c10d::ReduceOp::BOR:
      return {type, bitwise(tensor, ReduceOp::kBitOr, "BOR")};
    case c10d::ReduceOp::BXOR:
      return {type, bitwise(tensor, ReduceOp::kBitXor, "BXOR")};
    case c10d::ReduceOp::PREMUL_SUM:
      return {type, ReduceOp::kSum, premultiplier(op, tensor)};
    default:
      TORCH_CHECK_VALUE(false, "topoopt: unknown reduce operation");
  }
}

at::Tensor flatLike(const at::Tensor& like, int64_t elements) {
  return at::empty({elements}, like.options());
}

std::byte* bytesOf(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  if (a.nbytes() == 0 || b.nbytes() == 0) return false;
  return bytesOf(a) < bytesOf(b) + b.nbytes() && bytesOf(b) < bytesOf(a) + a.nbytes();
}

void copyBytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

at::Tensor flatten(at::TensorList tensors) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  at::Tensor flat = flatLike(tensors[0], elements);
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    flat.narrow(0, at, tensor.numel()).view(tensor.sizes()).copy_(tensor);
    at += tensor.numel();
  }
  return flat;
}

void unflatten(const at::Tensor& flat, at::TensorList tensors) {
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

bool sameSizes(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.numel() == tensors[0].numel();
  });
}

std::vector<size_t> sizesInElements(const std::vector<at::Tensor>& tensors) {
  std::vector<size_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(static_cast<size_t>(tensor.numel()));
  return sizes;
}

std::vector<size_t> sizesInBytes(const std::vector<at::Tensor>& tensors) {
  std::vector<size_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.nbytes());
  return sizes;
}

std::vector<size_t> splitBytes(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                               int size, const char* which) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const size_t row_bytes = rows == 0 ? 0 : tensor.nbytes() / rows;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, "topoopt: all_to_all_single: the ", which, " has ", rows,
                      " rows, which ", size, " ranks cannot share evenly");
    return std::vector<size_t>(size, rows / size * row_bytes);
  }
  TORCH_CHECK_VALUE(static_cast<int>(splits.size()) == size,
                    "topoopt: all_to_all_single: ", splits.size(), " ", which, " splits for ", size,
                    " ranks");
  std::vector<size_t> bytes;
  int64_t total = 0;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "topoopt: all_to_all_single: negative ", which, " split ", split);
    bytes.push_back(static_cast<size_t>(split) * row_bytes);
    total += split;
  }
  TORCH_CHECK_VALUE(total == rows, "topoopt: all_to_all_single: the ", which, " splits sum to ",
                    total, ", not to its ", rows, " rows");
  return bytes;
}

}  // namespace topoopt
