#include "common/reduce.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace topoopt {
namespace {

// Conversions compute all cases and select one: without branches, the compiler can vectorise them.

struct Bfloat16 {
  uint16_t bits;

  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }

  static Bfloat16 from(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
    const uint32_t quiet = (word >> 16) | 0x40;  // keeps NaN
    return {static_cast<uint16_t>((word & 0x7fffffff) > 0x7f800000 ? quiet : rounded)};
  }
};

struct Float16 {
  uint16_t bits;

  explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1f;
    const uint32_t mantissa = bits & 0x3ff;
    // Zero or subnormal: build a number between 2^-14 and 2^-13, then subtract 2^-14.
    const bool small = exponent == 0;
    const uint32_t wide = small ? 113 : exponent == 31 ? 255 : exponent + 112;
    const float excess = std::bit_cast<float>(small ? 0x38800000u : 0u);
    const float magnitude = std::bit_cast<float>((wide << 23) | (mantissa << 13)) - excess;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }

  // Rounds to nearest, ties to even, as IEEE 754 conversion does.
  static Float16 from(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = word & 0x7fffffff;
    // For a subnormal, adding 0.5 aligns and rounds the mantissa.
    const bool small = magnitude < 0x38800000;
    const float addend = std::bit_cast<float>(small ? 0x3f000000u : 0u);
    const uint32_t sum = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + addend);
    const uint32_t normal = (sum + 0xfff + ((sum >> 13) & 1) - 0x38000000) >> 13;
    uint32_t bits = small ? sum - 0x3f000000 : normal;
    bits = magnitude >= 0x477ff000 ? 0x7c00 : bits;  // infinity
    bits = magnitude > 0x7f800000 ? 0x7e00 : bits;   // not a number
    return {static_cast<uint16_t>(((word >> 16) & 0x8000) | bits)};
  }
};

template <typename T>
constexpr bool kIsSmallFloat = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

// Integers use unsigned arithmetic, because signed overflow is undefined (and 16-bit values would
// be promoted to signed).
template <typename T>
auto wrapping(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>(value);
  } else {
    return value;
  }
}

// NaN propagates, as in torch.minimum and torch.maximum.
template <typename T>
T smaller(T a, T b) {
  return (a != a || a < b) ? a : b;
}

template <typename T>
T larger(T a, T b) {
  return (a != a || a > b) ? a : b;
}

// The target may be an operand. Iterations are still independent, because element i only depends on
// elements i; the compiler cannot know that.
template <typename T, typename Function>
inline void apply(void* target, const void* left, const void* right, size_t count,
                  Function function) {
  T* out = static_cast<T*>(target);
  const T* a = static_cast<const T*>(left);
  const T* b = static_cast<const T*>(right);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    if constexpr (kIsSmallFloat<T>) {
      out[i] = T::from(function(static_cast<float>(a[i]), static_cast<float>(b[i])));
    } else {
      out[i] = static_cast<T>(function(a[i], b[i]));
    }
  }
}

template <typename T>
inline void reduceTyped(ReduceOp op, void* target, const void* a, const void* b, size_t count) {
  switch (op) {
    case ReduceOp::kSum:
      return apply<T>(target, a, b, count,
                      [](auto x, auto y) { return wrapping(x) + wrapping(y); });
    case ReduceOp::kProduct:
      return apply<T>(target, a, b, count,
                      [](auto x, auto y) { return wrapping(x) * wrapping(y); });
    case ReduceOp::kMin:
      return apply<T>(target, a, b, count, [](auto x, auto y) { return smaller(x, y); });
    case ReduceOp::kMax:
      return apply<T>(target, a, b, count, [](auto x, auto y) { return larger(x, y); });
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    switch (op) {
      case ReduceOp::kBitAnd:
        return apply<T>(target, a, b, count, [](auto x, auto y) { return x & y; });
      case ReduceOp::kBitOr:
        return apply<T>(target, a, b, count, [](auto x, auto y) { return x | y; });
      case ReduceOp::kBitXor:
        return apply<T>(target, a, b, count, [](auto x, auto y) { return x ^ y; });
      default:
        break;
    }
  }
}

// Booleans are 0 or 1: a sum is "or", a product is "and".
inline ReduceOp ofBooleans(ReduceOp op) {
  if (op == ReduceOp::kSum) return ReduceOp::kMax;
  return op == ReduceOp::kProduct ? ReduceOp::kMin : op;
}

inline void reduceAny(DataType type, ReduceOp op, void* target, const void* a, const void* b,
                      size_t count) {
  switch (type) {
    case DataType::kBool:
      return reduceTyped<uint8_t>(ofBooleans(op), target, a, b, count);
    case DataType::kUint8:
      return reduceTyped<uint8_t>(op, target, a, b, count);
    case DataType::kInt8:
      return reduceTyped<int8_t>(op, target, a, b, count);
    case DataType::kInt16:
      return reduceTyped<int16_t>(op, target, a, b, count);
    case DataType::kInt32:
      return reduceTyped<int32_t>(op, target, a, b, count);
    case DataType::kInt64:
      return reduceTyped<int64_t>(op, target, a, b, count);
    case DataType::kFloat16:
      return reduceTyped<Float16>(op, target, a, b, count);
    case DataType::kBfloat16:
      return reduceTyped<Bfloat16>(op, target, a, b, count);
    case DataType::kFloat32:
      return reduceTyped<float>(op, target, a, b, count);
    case DataType::kFloat64:
      return reduceTyped<double>(op, target, a, b, count);
    default:
      break;  // rejected by reduceTo
  }
}

// One source compiled for several instruction sets, with all callees inlined. Selected at first use
// instead of by the loader, because sanitizers are not ready when that resolves symbols.
__attribute__((flatten)) void reduceAnywhere(DataType type, ReduceOp op, void* target,
                                             const void* a, const void* b, size_t count) {
  reduceAny(type, op, target, a, b, count);
}
#if defined(__x86_64__)
__attribute__((target("avx2,f16c"))) void widen(const Float16* from, float* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

__attribute__((target("avx2,f16c"))) void narrow(const float* from, Float16* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 floats = _mm256_loadu_ps(from + i);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) to[i] = Float16::from(from[i]);
}
#elif defined(__aarch64__)
void widen(const Float16* from, float* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(&from[i].bits));
    vst1q_f32(to + i, vcvt_f32_f16(vget_low_f16(halves)));
    vst1q_f32(to + i + 4, vcvt_high_f32_f16(halves));
  }
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

void narrow(const float* from, Float16* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const float16x4_t low = vcvt_f16_f32(vld1q_f32(from + i));
    vst1q_u16(&to[i].bits, vreinterpretq_u16_f16(vcvt_high_f16_f32(low, vld1q_f32(from + i + 4))));
  }
  for (; i < count; ++i) to[i] = Float16::from(from[i]);
}
#endif

#if defined(__x86_64__) || defined(__aarch64__)
// Converts 16-bit floats in hardware, which compilers do not use here.
void reduceHalves(decltype(ReduceVariant::reduce) reduce, ReduceOp op, void* target, const void* a,
                  const void* b, size_t count) {
  constexpr size_t kBlock = 512;
  float left[kBlock];
  float right[kBlock];
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t length = std::min(kBlock, count - first);
    widen(static_cast<const Float16*>(a) + first, left, length);
    widen(static_cast<const Float16*>(b) + first, right, length);
    reduce(DataType::kFloat32, op, left, left, right, length);
    narrow(left, static_cast<Float16*>(target) + first, length);
  }
}
#endif

#if defined(__x86_64__)
__attribute__((flatten, target("avx2"))) void reduceWideAvx2(DataType type, ReduceOp op,
                                                             void* target, const void* a,
                                                             const void* b, size_t count) {
  reduceAny(type, op, target, a, b, count);
}

void reduceAvx2(DataType type, ReduceOp op, void* target, const void* a, const void* b,
                size_t count) {
  if (type == DataType::kFloat16) return reduceHalves(reduceWideAvx2, op, target, a, b, count);
  reduceWideAvx2(type, op, target, a, b, count);
}

__attribute__((flatten,
               target("avx2,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))) void
reduceWideAvx512(DataType type, ReduceOp op, void* target, const void* a, const void* b,
                 size_t count) {
  reduceAny(type, op, target, a, b, count);
}

void reduceAvx512(DataType type, ReduceOp op, void* target, const void* a, const void* b,
                  size_t count) {
  if (type == DataType::kFloat16) return reduceHalves(reduceWideAvx512, op, target, a, b, count);
  reduceWideAvx512(type, op, target, a, b, count);
}
#elif defined(__aarch64__)
// All of these processors have NEON, which compilers use for the other types. SVE vectors on Grace
// and GB10 are no longer.
void reduceNeon(DataType type, ReduceOp op, void* target, const void* a, const void* b,
                size_t count) {
  if (type == DataType::kFloat16) return reduceHalves(reduceAnywhere, op, target, a, b, count);
  reduceAnywhere(type, op, target, a, b, count);
}
#endif

const ReduceVariant& bestVariant() {
  static const ReduceVariant best = reduceVariants().back();
  return best;
}

struct Element {
  const char* name;
  size_t size;
};

// In the order of DataType.
constexpr std::array<Element, 22> kElements = {{
    {"uint8", 1},          {"int8", 1},          {"int16", 2},           {"int32", 4},
    {"int64", 8},          {"float16", 2},       {"bfloat16", 2},        {"float32", 4},
    {"float64", 8},        {"bool", 1},          {"uint16", 2},          {"uint32", 4},
    {"uint64", 8},         {"complex32", 4},     {"complex64", 8},       {"complex128", 16},
    {"float8_e5m2", 1},    {"float8_e4m3fn", 1}, {"float8_e5m2fnuz", 1}, {"float8_e4m3fnuz", 1},
    {"float8_e8m0fnu", 1}, {"bytes", 1},
}};
static_assert(kElements.size() == static_cast<size_t>(DataType::kBytes) + 1);

template <typename T>
void divideTyped(void* data, size_t count, double divisor) {
  T* values = static_cast<T*>(data);
  for (size_t i = 0; i < count; ++i) {
    if constexpr (kIsSmallFloat<T>) {
      values[i] = T::from(static_cast<float>(values[i]) / static_cast<float>(divisor));
    } else if constexpr (std::is_floating_point_v<T>) {
      values[i] /= static_cast<T>(divisor);
    } else {
      values[i] = static_cast<T>(static_cast<int64_t>(values[i]) / static_cast<int64_t>(divisor));
    }
  }
}

}  // namespace

size_t elementSize(DataType type) { return kElements.at(static_cast<size_t>(type)).size; }

const char* nameOf(DataType type) { return kElements.at(static_cast<size_t>(type)).name; }

std::vector<ReduceVariant> reduceVariants() {
  std::vector<ReduceVariant> variants = {{"default", reduceAnywhere}};
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (avx2) variants.push_back({"avx2", reduceAvx2});
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    variants.push_back({"avx512", reduceAvx512});
  }
#elif defined(__aarch64__)
  variants.push_back({"neon", reduceNeon});
#endif
  return variants;
}

void reduceTo(DataType type, ReduceOp op, void* target, const void* a, const void* b,
              size_t count) {
  const bool bitwise = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  const bool floating = type == DataType::kFloat16 || type == DataType::kBfloat16 ||
                        type == DataType::kFloat32 || type == DataType::kFloat64;
  if (bitwise && floating) {
    throw std::invalid_argument("bitwise reduction of floating-point elements");
  }
  if (type > DataType::kBool) {
    throw std::invalid_argument(std::string("reduction of ") + nameOf(type));
  }
  bestVariant().reduce(type, op, target, a, b, count);
}

void reduceInto(DataType type, ReduceOp op, void* target, const void* operand, size_t count) {
  reduceTo(type, op, target, target, operand, count);
}

void divideBy(DataType type, void* data, size_t count, double divisor) {
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
    default:
      throw std::invalid_argument(std::string("the average of ") + nameOf(type) +
                                  " is not defined");
  }
}

}  // namespace topoopt
