#include "common/reduce.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <type_traits>

namespace topoopt {
namespace {

struct Bfloat16 {
  uint16_t bits;

  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }

  static Bfloat16 from(float value) {
    uint32_t word = std::bit_cast<uint32_t>(value);
    if (value != value) return {static_cast<uint16_t>((word >> 16) | 0x40)};  // keep NaN a NaN
    return {static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16)};
  }
};

struct Float16 {
  uint16_t bits;

  explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1f;
    const uint32_t mantissa = bits & 0x3ff;
    if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
      const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
      return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
    }
    const uint32_t wide = exponent == 31 ? 0xff : exponent + 112;
    return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
  }

  // Rounds to nearest, ties to even, as IEEE 754 conversion does.
  static Float16 from(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>((word >> 16) & 0x8000);
    const uint32_t magnitude = word & 0x7fffffff;
    if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
    if (magnitude >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};
    if (magnitude < 0x38800000) {  // subnormal: adding 0.5 aligns the mantissa and rounds it
      const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
      return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000))};
    }
    const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    return {static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13))};
  }
};

template <typename T>
constexpr bool kIsSmallFloat = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

// Integers are added and multiplied as unsigned words, since signed overflow is undefined (and
// 16-bit values would be promoted to signed ones).
template <typename T>
auto wrapping(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>(value);
  } else {
    return value;
  }
}

// NaN wins, as in torch.minimum and torch.maximum.
template <typename T>
T smaller(T a, T b) {
  return (a != a || a < b) ? a : b;
}

template <typename T>
T larger(T a, T b) {
  return (a != a || a > b) ? a : b;
}

template <typename T, typename Function>
void apply(void* target, const void* operand, size_t count, Function function) {
  T* __restrict a = static_cast<T*>(target);
  const T* __restrict b = static_cast<const T*>(operand);
  for (size_t i = 0; i < count; ++i) {
    if constexpr (kIsSmallFloat<T>) {
      a[i] = T::from(function(static_cast<float>(a[i]), static_cast<float>(b[i])));
    } else {
      a[i] = static_cast<T>(function(a[i], b[i]));
    }
  }
}

template <typename T>
void reduceTyped(ReduceOp op, void* target, const void* operand, size_t count) {
  switch (op) {
    case ReduceOp::kSum:
      return apply<T>(target, operand, count,
                      [](auto a, auto b) { return wrapping(a) + wrapping(b); });
    case ReduceOp::kProduct:
      return apply<T>(target, operand, count,
                      [](auto a, auto b) { return wrapping(a) * wrapping(b); });
    case ReduceOp::kMin:
      return apply<T>(target, operand, count, [](auto a, auto b) { return smaller(a, b); });
    case ReduceOp::kMax:
      return apply<T>(target, operand, count, [](auto a, auto b) { return larger(a, b); });
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    switch (op) {
      case ReduceOp::kBitAnd:
        return apply<T>(target, operand, count, [](auto a, auto b) { return a & b; });
      case ReduceOp::kBitOr:
        return apply<T>(target, operand, count, [](auto a, auto b) { return a | b; });
      case ReduceOp::kBitXor:
        return apply<T>(target, operand, count, [](auto a, auto b) { return a ^ b; });
      default:
        break;
    }
  }
  throw std::invalid_argument("bitwise reduction of floating-point elements");
}

// Booleans hold 0 or 1: a sum is "or", a product is "and".
void reduceBool(ReduceOp op, void* target, const void* operand, size_t count) {
  switch (op) {
    case ReduceOp::kSum:
      return reduceTyped<uint8_t>(ReduceOp::kMax, target, operand, count);
    case ReduceOp::kProduct:
      return reduceTyped<uint8_t>(ReduceOp::kMin, target, operand, count);
    default:
      return reduceTyped<uint8_t>(op, target, operand, count);
  }
}

template <typename T>
void divideTyped(void* data, size_t count, int divisor) {
  T* values = static_cast<T*>(data);
  for (size_t i = 0; i < count; ++i) {
    if constexpr (kIsSmallFloat<T>) {
      values[i] = T::from(static_cast<float>(values[i]) / static_cast<float>(divisor));
    } else if constexpr (std::is_floating_point_v<T>) {
      values[i] /= static_cast<T>(divisor);
    } else {
      values[i] = static_cast<T>(static_cast<int64_t>(values[i]) / divisor);
    }
  }
}

}  // namespace

size_t elementSize(DataType type) {
  switch (type) {
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kBool:
      return 1;
    case DataType::kInt16:
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kFloat64:
      return 8;
  }
  throw std::invalid_argument("unknown data type");
}

void reduceInto(DataType type, ReduceOp op, void* target, const void* operand, size_t count) {
  switch (type) {
    case DataType::kUint8:
      return reduceTyped<uint8_t>(op, target, operand, count);
    case DataType::kInt8:
      return reduceTyped<int8_t>(op, target, operand, count);
    case DataType::kInt16:
      return reduceTyped<int16_t>(op, target, operand, count);
    case DataType::kInt32:
      return reduceTyped<int32_t>(op, target, operand, count);
    case DataType::kInt64:
      return reduceTyped<int64_t>(op, target, operand, count);
    case DataType::kFloat16:
      return reduceTyped<Float16>(op, target, operand, count);
    case DataType::kBfloat16:
      return reduceTyped<Bfloat16>(op, target, operand, count);
    case DataType::kFloat32:
      return reduceTyped<float>(op, target, operand, count);
    case DataType::kFloat64:
      return reduceTyped<double>(op, target, operand, count);
    case DataType::kBool:
      return reduceBool(op, target, operand, count);
  }
  throw std::invalid_argument("unknown data type");
}

void divideBy(DataType type, void* data, size_t count, int divisor) {
  switch (type) {
    case DataType::kUint8:
      return divideTyped<uint8_t>(data, count, divisor);
    case DataType::kInt8:
      return divideTyped<int8_t>(data, count, divisor);
    case DataType::kInt16:
      return divideTyped<int16_t>(data, count, divisor);
    case DataType::kInt32:
      return divideTyped<int32_t>(data, count, divisor);
    case DataType::kInt64:
      return divideTyped<int64_t>(data, count, divisor);
    case DataType::kFloat16:
      return divideTyped<Float16>(data, count, divisor);
    case DataType::kBfloat16:
      return divideTyped<Bfloat16>(data, count, divisor);
    case DataType::kFloat32:
      return divideTyped<float>(data, count, divisor);
    case DataType::kFloat64:
      return divideTyped<double>(data, count, divisor);
    case DataType::kBool:
      throw std::invalid_argument("the average of booleans is not defined");
  }
}

}  // namespace topoopt
