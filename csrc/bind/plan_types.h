// The types of a Plan as records: functions of both extension modules take and return
// torch_topoopt.plan classes, such as Ring. The modules cannot share a C++ type at run time, but
// both include this header.

#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <tuple>

#include "bind/record.h"
#include "plan/cost_model.h"
#include "plan/network.h"
#include "plan/placement.h"

namespace topoopt {

template <>
struct Record<plan::LinkPorts> {
  static constexpr auto python = pybind11::detail::const_name("torch_topoopt.plan.Link");
  static constexpr auto fields = std::tuple(Field{"source", &plan::LinkPorts::source},
                                            Field{"source_port", &plan::LinkPorts::source_port},
                                            Field{"target", &plan::LinkPorts::target},
                                            Field{"target_port", &plan::LinkPorts::target_port});
};

template <>
struct Record<plan::Ring> {
  static constexpr auto python = pybind11::detail::const_name("torch_topoopt.plan.Ring");
  static constexpr auto fields =
      std::tuple(Field{"servers", &plan::Ring::servers}, Field{"share", &plan::Ring::share});
};

template <>
struct Record<plan::AllReduceGroup> {
  static constexpr auto python = pybind11::detail::const_name("torch_topoopt.plan.Group");
  static constexpr auto fields = std::tuple(Field{"servers", &plan::AllReduceGroup::servers},
                                            Field{"rings", &plan::AllReduceGroup::rings},
                                            Field{"grid", &plan::AllReduceGroup::grid});
};

template <>
struct Record<plan::Route> {
  static constexpr auto python = pybind11::detail::const_name("torch_topoopt.plan.Route");
  static constexpr auto fields =
      std::tuple(Field{"servers", &plan::Route::servers}, Field{"weight", &plan::Route::weight});
};

template <>
struct Record<plan::StrideRoute> {
  static constexpr auto python = pybind11::detail::const_name("torch_topoopt.plan.StrideRoute");
  static constexpr auto fields = std::tuple(Field{"strides", &plan::StrideRoute::strides},
                                            Field{"weight", &plan::StrideRoute::weight});
};

template <>
struct Record<plan::AllReduceTime> {
  static constexpr auto python = pybind11::detail::const_name("torch_topoopt.plan.AllReduceTime");
  static constexpr auto fields = std::tuple(Field{"algorithm", &plan::AllReduceTime::algorithm},
                                            Field{"bytes", &plan::AllReduceTime::bytes},
                                            Field{"seconds", &plan::AllReduceTime::seconds});
};

template <>
struct Record<plan::CostModel> {
  static constexpr auto python = pybind11::detail::const_name("torch_topoopt.plan.CostModel");
  static constexpr auto fields =
      std::tuple(Field{"alpha_s", &plan::CostModel::alpha_s},
                 Field{"per_hop_latency_s", &plan::CostModel::per_hop_latency_s},
                 Field{"beta_s_per_byte", &plan::CostModel::beta_s_per_byte},
                 Field{"gamma_s_per_byte", &plan::CostModel::gamma_s_per_byte},
                 Field{"all_reduce", &plan::CostModel::all_reduce});
};

template <>
struct Record<plan::Degrees> {
  static constexpr auto python = pybind11::detail::const_name("torch_topoopt.plan.Degrees");
  static constexpr auto fields = std::tuple(
      Field{"sample", &plan::Degrees::sample}, Field{"kind", &plan::Degrees::kind},
      Field{"parameter", &plan::Degrees::parameter}, Field{"attribute", &plan::Degrees::attribute});
};

template <>
struct Record<plan::Placement> {
  static constexpr auto python = pybind11::detail::const_name("torch_topoopt.plan.Placement");
  static constexpr auto fields = std::tuple(Field{"servers", &plan::Placement::servers},
                                            Field{"degrees", &plan::Placement::degrees});
  // For an operator without a name.
  static pybind11::object make(const plan::Placement& placement);
};

}  // namespace topoopt

namespace pybind11::detail {

template <>
struct type_caster<topoopt::plan::ParameterKind> {
  using Kind = topoopt::plan::ParameterKind;
  PYBIND11_TYPE_CASTER(Kind, const_name("typing.Literal['columns', 'rows', 'experts'] | None"));

  bool load(handle source, bool) {
    make_caster<std::string> text;
    if (!source.is_none() && !text.load(source, true)) return false;
    const std::string name = source.is_none() ? "" : cast_op<std::string>(text);
    const auto found = std::find(kNames.begin(), kNames.end(), name);
    value = static_cast<Kind>(found - kNames.begin());
    return found != kNames.end();
  }

  static handle cast(Kind kind, return_value_policy, handle) {
    if (kind == Kind::kNone) return none().release();
    return str(std::string(kNames[static_cast<size_t>(kind)])).release();
  }

 private:
  static constexpr std::array<std::string_view, 4> kNames = {"", "columns", "rows", "experts"};
};

}  // namespace pybind11::detail

namespace topoopt {

inline pybind11::object Record<plan::Placement>::make(const plan::Placement& placement) {
  return pythonClass<plan::Placement>().attr("of")("", inRecord(placement.servers),
                                                   placement.degrees);
}

}  // namespace topoopt
