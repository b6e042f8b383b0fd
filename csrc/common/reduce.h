// Element types and the arithmetic of reductions, on plain memory.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace topoopt {

enum class DataType : uint8_t {
  kUint8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kBool,
  // Types that can only be moved.
  kUint16,
  kUint32,
  kUint64,
  kComplex32,
  kComplex64,
  kComplex128,
  kFloat8E5M2,
  kFloat8E4M3Fn,
  kFloat8E5M2Fnuz,
  kFloat8E4M3Fnuz,
  kFloat8E8M0Fnu,
  kBytes,  // any other type
};

enum class ReduceOp : uint8_t { kSum, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };

size_t elementSize(DataType type);
const char* nameOf(DataType type);  // torch's name

// target[i] = target[i] op operand[i] for `count` elements; the ranges must not overlap.
// Sums and products of 16-bit floats are rounded once per call, after computing in 32 bits.
// Throws std::invalid_argument for a bitwise operation on floating-point elements, and for types
// that can only be moved.
void reduceInto(DataType type, ReduceOp op, void* target, const void* operand, size_t count);

// target[i] = a[i] op b[i], as above; the target is a, b, or disjoint from both.
void reduceTo(DataType type, ReduceOp op, void* target, const void* a, const void* b, size_t count);

// The code for one instruction set; results are equal bit for bit, except for the payload of a NaN.
struct ReduceVariant {
  const char* name;
  void (*reduce)(DataType, ReduceOp, void* target, const void* a, const void* b, size_t count);
};

// The variants that this processor supports; the last one is used.
std::vector<ReduceVariant> reduceVariants();

// data[i] = data[i] / divisor; integers, with an integral divisor, truncate towards zero.
void divideBy(DataType type, void* data, size_t count, double divisor);

}  // namespace topoopt
