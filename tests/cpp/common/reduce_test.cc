// The arithmetic of reductions against a plain reference in double or 64-bit integers.

#include "common/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "support/seed.h"

namespace topoopt {
namespace {

constexpr ReduceOp kArithmetic[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin,
                                    ReduceOp::kMax};
constexpr ReduceOp kBitwise[] = {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor};

// ---- integers ----------------------------------------------------------------------------------

// In 128 bits nothing overflows, so the conversion back shows what wrapping must give.
template <typename T>
T expectedInteger(ReduceOp op, T a, T b) {
  const __int128 x = a;
  const __int128 y = b;
  switch (op) {
    case ReduceOp::kSum:
      return static_cast<T>(x + y);
    case ReduceOp::kProduct:
      return static_cast<T>(x * y);
    case ReduceOp::kMin:
      return static_cast<T>(x < y ? x : y);
    case ReduceOp::kMax:
      return static_cast<T>(x > y ? x : y);
    case ReduceOp::kBitAnd:
      return static_cast<T>(x & y);
    case ReduceOp::kBitOr:
      return static_cast<T>(x | y);
    case ReduceOp::kBitXor:
      return static_cast<T>(x ^ y);
  }
  return 0;
}

template <typename T>
void checkIntegers(DataType type) {
  ASSERT_EQ(elementSize(type), sizeof(T));
  TestRandom random(10 + static_cast<uint64_t>(type));
  const std::vector<T> corners = {std::numeric_limits<T>::min(), std::numeric_limits<T>::max(),
                                  T{0}, T{1}, static_cast<T>(-1)};
  std::vector<T> a;
  std::vector<T> b;
  for (const T x : corners) {
    for (const T y : corners) a.push_back(x), b.push_back(y);
  }
  for (int i = 0; i < 2000; ++i) {
    a.push_back(static_cast<T>(random.word()));
    b.push_back(static_cast<T>(random.word()));
  }
  const auto check = [&](ReduceOp op) {
    std::vector<T> target = a;
    reduceInto(type, op, target.data(), b.data(), a.size());
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(target[i], expectedInteger(op, a[i], b[i]))
          << "op " << static_cast<int>(op) << " of " << +a[i] << " and " << +b[i];
    }
  };
  for (const ReduceOp op : kArithmetic) check(op);
  for (const ReduceOp op : kBitwise) check(op);
}

TEST(Reduce, IntegersWrapAroundAsTwosComplement) {
  checkIntegers<uint8_t>(DataType::kUint8);
  checkIntegers<int8_t>(DataType::kInt8);
  checkIntegers<int16_t>(DataType::kInt16);
  checkIntegers<int32_t>(DataType::kInt32);
  checkIntegers<int64_t>(DataType::kInt64);
}

TEST(Reduce, BooleansStayBooleans) {
  for (uint8_t a : {0, 1}) {
    for (uint8_t b : {0, 1}) {
      const auto reduced = [&](ReduceOp op) {
        uint8_t value = a;
        reduceInto(DataType::kBool, op, &value, &b, 1);
        return int{value};
      };
      EXPECT_EQ(reduced(ReduceOp::kSum), a | b);
      EXPECT_EQ(reduced(ReduceOp::kMax), a | b);
      EXPECT_EQ(reduced(ReduceOp::kBitOr), a | b);
      EXPECT_EQ(reduced(ReduceOp::kProduct), a & b);
      EXPECT_EQ(reduced(ReduceOp::kMin), a & b);
      EXPECT_EQ(reduced(ReduceOp::kBitAnd), a & b);
      EXPECT_EQ(reduced(ReduceOp::kBitXor), a ^ b);
    }
  }
}

// ---- floating point ----------------------------------------------------------------------------

double expectedReal(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::isnan(a) || a < b ? a : b;
    default:
      return std::isnan(a) || a > b ? a : b;
  }
}

template <typename T>
void checkReals(DataType type) {
  TestRandom random(30 + static_cast<uint64_t>(type));
  const T infinity = std::numeric_limits<T>::infinity();
  const std::vector<T> corners = {T{0},
                                  T{1},
                                  T{-1},
                                  infinity,
                                  -infinity,
                                  std::numeric_limits<T>::quiet_NaN(),
                                  std::numeric_limits<T>::max(),
                                  std::numeric_limits<T>::denorm_min()};
  std::vector<T> a;
  std::vector<T> b;
  for (const T x : corners) {
    for (const T y : corners) a.push_back(x), b.push_back(y);
  }
  std::normal_distribution<double> normal;
  for (int i = 0; i < 2000; ++i) {
    a.push_back(static_cast<T>(normal(random.engine())));
    b.push_back(static_cast<T>(normal(random.engine())));
  }
  for (const ReduceOp op : kArithmetic) {
    std::vector<T> target = a;
    reduceInto(type, op, target.data(), b.data(), a.size());
    for (size_t i = 0; i < a.size(); ++i) {
      // The sum and the product of two floats, rounded to double first, round to the same float
      // (double has more than twice the digits); of two doubles it is the operation itself.
      const T expected = static_cast<T>(expectedReal(op, a[i], b[i]));
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(target[i])) << static_cast<int>(op) << ": " << a[i] << ", " << b[i];
      } else {
        ASSERT_EQ(target[i], expected) << static_cast<int>(op) << ": " << a[i] << ", " << b[i];
      }
    }
  }
}

TEST(Reduce, FloatsAndDoublesRoundOnceAndNanWins) {
  checkReals<float>(DataType::kFloat32);
  checkReals<double>(DataType::kFloat64);
}

TEST(Reduce, BitwiseOperationsOnFloatingPointAreRefused) {
  for (const DataType type :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64}) {
    uint64_t a = 0;
    const uint64_t b = 0;
    for (const ReduceOp op : kBitwise) {
      EXPECT_THROW(reduceInto(type, op, &a, &b, 1), std::invalid_argument);
    }
  }
}

// ---- 16-bit floats -----------------------------------------------------------------------------

// A 16-bit format by its numbers of exponent and mantissa bits, read from the definition.
struct Format {
  DataType type;
  int exponent_bits;
  int mantissa_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int topExponent() const { return (1 << exponent_bits) - 1; }

  double value(uint16_t bits) const {
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    const int exponent = (bits >> mantissa_bits) & topExponent();
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    if (exponent == topExponent()) return mantissa == 0 ? sign * INFINITY : NAN;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias() - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias() - mantissa_bits);
  }

  // Nearest, ties to even, of a number that is not NaN: magnitudes of the format are ordered as
  // their bits, so the neighbours are found by bisection.
  uint16_t nearest(double number) const {
    const uint16_t sign = std::signbit(number) ? 0x8000 : 0;
    const double magnitude = std::fabs(number);
    const uint16_t infinity = static_cast<uint16_t>(topExponent() << mantissa_bits);
    uint16_t low = 0;
    uint16_t high = infinity;
    while (high - low > 1) {
      const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
      (value(middle) <= magnitude ? low : high) = middle;
    }
    if (magnitude == INFINITY) return sign | infinity;
    // Beyond the largest number, rounding goes on as if the exponent had one more step.
    const double above = high == infinity ? std::ldexp(1.0, topExponent() - bias()) : value(high);
    const double down = magnitude - value(low);
    const double up = above - magnitude;
    if (down < up) return sign | low;
    if (up < down) return sign | high;
    return sign | (low % 2 == 0 ? low : high);
  }
};

constexpr Format kHalf{DataType::kFloat16, 5, 10};
constexpr Format kBrain{DataType::kBfloat16, 8, 7};

bool isNan(const Format& format, uint16_t bits) { return std::isnan(format.value(bits)); }

TEST(Reduce, Every16BitPatternSurvivesTheWayThroughFloat) {
  for (const Format& format : {kHalf, kBrain}) {
    std::vector<uint16_t> all(65536);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    std::vector<uint16_t> same = all;
    reduceInto(format.type, ReduceOp::kMax, same.data(), all.data(), all.size());
    std::vector<uint16_t> product = all;
    const std::vector<uint16_t> ones(all.size(), format.nearest(1.0));
    reduceInto(format.type, ReduceOp::kProduct, product.data(), ones.data(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      if (isNan(format, all[i])) {
        ASSERT_TRUE(isNan(format, same[i])) << i;
        ASSERT_TRUE(isNan(format, product[i])) << i;
      } else {
        ASSERT_EQ(same[i], all[i]);
        ASSERT_EQ(product[i], all[i]);
      }
    }
  }
}

void check16Bit(const Format& format, ReduceOp op, uint16_t a, uint16_t b) {
  uint16_t result = a;
  reduceInto(format.type, op, &result, &b, 1);
  // The contract: computed in 32 bits, then rounded to 16.
  const float exact = static_cast<float>(expectedReal(op, format.value(a), format.value(b)));
  if (std::isnan(exact)) {
    ASSERT_TRUE(isNan(format, result)) << a << " " << b;
  } else {
    ASSERT_EQ(result, format.nearest(exact))
        << "op " << static_cast<int>(op) << " of " << format.value(a) << " and " << format.value(b);
  }
}

TEST(Reduce, SixteenBitFloatsRoundToNearestTiesToEven) {
  for (const Format& format : {kHalf, kBrain}) {
    TestRandom random(50 + static_cast<uint64_t>(format.type));
    for (int i = 0; i < 40000; ++i) {
      const auto a = static_cast<uint16_t>(random.word());
      // Operands of similar size make the ties; unrelated ones reach overflow and underflow.
      const auto b = static_cast<uint16_t>(random.chance(0.5) ? random.word()
                                                              : a + random.between(0, 4096) - 2048);
      for (const ReduceOp op : kArithmetic) check16Bit(format, op, a, b);
    }
  }
}

TEST(Reduce, HalvesOfTheLastDigitGoToTheEvenNeighbour) {
  const auto sum = [](const Format& format, double a, double b) {
    uint16_t result = format.nearest(a);
    const uint16_t operand = format.nearest(b);
    reduceInto(format.type, ReduceOp::kSum, &result, &operand, 1);
    return format.value(result);
  };
  EXPECT_EQ(sum(kHalf, 2048, 1), 2048);
  EXPECT_EQ(sum(kHalf, 2050, 1), 2052);
  EXPECT_EQ(sum(kBrain, 256, 1), 256);
  EXPECT_EQ(sum(kBrain, 258, 1), 260);
  EXPECT_EQ(sum(kHalf, 65504, 15), 65504);
  EXPECT_EQ(sum(kHalf, 65504, 16), INFINITY);
  EXPECT_EQ(sum(kHalf, -65504, -16), -INFINITY);
}

// ---- variants and places -----------------------------------------------------------------------

bool isNanOf(DataType type, const std::byte* at) {
  uint64_t word = 0;
  std::memcpy(&word, at, elementSize(type));
  switch (type) {
    case DataType::kFloat16:
      return isNan(kHalf, static_cast<uint16_t>(word));
    case DataType::kBfloat16:
      return isNan(kBrain, static_cast<uint16_t>(word));
    case DataType::kFloat32:
      return std::isnan(std::bit_cast<float>(static_cast<uint32_t>(word)));
    case DataType::kFloat64:
      return std::isnan(std::bit_cast<double>(word));
    default:
      return false;
  }
}

// Which of two NaNs an addition passes on is left open by IEEE 754.
void expectSame(DataType type, const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  const size_t element = elementSize(type);
  for (size_t at = 0; at < a.size(); at += element) {
    if (isNanOf(type, &a[at]) && isNanOf(type, &b[at])) continue;
    ASSERT_EQ(std::memcmp(&a[at], &b[at], element), 0) << "element " << at / element;
  }
}

TEST(Reduce, EveryInstructionSetAndPlaceGivesTheSameBits) {
  TestRandom random(60);
  const auto variants = reduceVariants();
  ASSERT_FALSE(variants.empty());
  for (int t = 0; t <= static_cast<int>(DataType::kBool); ++t) {
    const auto type = static_cast<DataType>(t);
    const bool floating = type == DataType::kFloat16 || type == DataType::kBfloat16 ||
                          type == DataType::kFloat32 || type == DataType::kFloat64;
    for (int o = 0; o <= static_cast<int>(floating ? ReduceOp::kMax : ReduceOp::kBitXor); ++o) {
      const auto op = static_cast<ReduceOp>(o);
      for (const size_t count : {0, 1, 7, 31, 64, 130, 1021}) {
        SCOPED_TRACE("type " + std::to_string(t) + ", operation " + std::to_string(o) + ", " +
                     std::to_string(count) + " elements");
        std::vector<std::byte> a(count * elementSize(type));
        for (std::byte& byte : a) {
          byte = static_cast<std::byte>(random.word() % (type == DataType::kBool ? 2 : 256));
        }
        std::vector<std::byte> b = a;
        std::shuffle(b.begin(), b.end(), random.engine());
        std::vector<std::byte> expected(a.size());
        variants[0].reduce(type, op, expected.data(), a.data(), b.data(), count);
        for (const ReduceVariant& variant : variants) {
          SCOPED_TRACE(variant.name);
          std::vector<std::byte> out(a.size());
          variant.reduce(type, op, out.data(), a.data(), b.data(), count);
          ASSERT_NO_FATAL_FAILURE(expectSame(type, out, expected));
          out = a;
          variant.reduce(type, op, out.data(), out.data(), b.data(), count);
          ASSERT_NO_FATAL_FAILURE(expectSame(type, out, expected));
          out = b;
          variant.reduce(type, op, out.data(), a.data(), out.data(), count);
          ASSERT_NO_FATAL_FAILURE(expectSame(type, out, expected));
        }
      }
    }
  }
}

// ---- division ----------------------------------------------------------------------------------

template <typename T>
void checkDivision(DataType type) {
  TestRandom random(70 + static_cast<uint64_t>(type));
  std::vector<T> values = {std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), T{0}};
  for (int i = 0; i < 1000; ++i) values.push_back(static_cast<T>(random.word()));
  for (const int divisor : {1, 2, 3, 7, 128}) {
    std::vector<T> data = values;
    divideBy(type, data.data(), data.size(), divisor);
    for (size_t i = 0; i < data.size(); ++i) {
      ASSERT_EQ(data[i], static_cast<T>(static_cast<__int128>(values[i]) / divisor))
          << +values[i] << " / " << divisor;
    }
  }
}

TEST(Divide, IntegersTruncateTowardsZero) {
  checkDivision<uint8_t>(DataType::kUint8);
  checkDivision<int8_t>(DataType::kInt8);
  checkDivision<int16_t>(DataType::kInt16);
  checkDivision<int32_t>(DataType::kInt32);
  checkDivision<int64_t>(DataType::kInt64);
  int32_t value = -7;
  divideBy(DataType::kInt32, &value, 1, 2);
  EXPECT_EQ(value, -3);
}

TEST(Divide, FloatingPointRoundsOnce) {
  for (const int divisor : {1, 2, 3, 5, 7}) {
    float single = 10.f;
    divideBy(DataType::kFloat32, &single, 1, divisor);
    EXPECT_EQ(single, 10.f / static_cast<float>(divisor));
    double wide = 10.;
    divideBy(DataType::kFloat64, &wide, 1, divisor);
    EXPECT_EQ(wide, 10. / divisor);
    for (const Format& format : {kHalf, kBrain}) {
      for (int bits = 0; bits < 65536; bits += 7) {
        auto value = static_cast<uint16_t>(bits);
        if (isNan(format, value)) continue;
        divideBy(format.type, &value, 1, divisor);
        const auto exact = static_cast<float>(format.value(static_cast<uint16_t>(bits)) / divisor);
        ASSERT_EQ(value, format.nearest(exact)) << bits << " / " << divisor;
      }
    }
  }
}

TEST(Divide, TheAverageOfBooleansIsRefused) {
  uint8_t value = 1;
  EXPECT_THROW(divideBy(DataType::kBool, &value, 1, 2), std::invalid_argument);
}

}  // namespace
}  // namespace topoopt
