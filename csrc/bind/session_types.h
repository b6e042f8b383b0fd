// The types of a Session as records (see record.h): its links and cables, groups and observers.

#pragma once

#include <pybind11/chrono.h>

#include <string>

#include "backend/supervision/supervisor.h"
#include "bind/plan_types.h"
#include "collectives/group/group.h"
#include "transport/endpoint/cable_graph.h"
#include "transport/links/link.h"

namespace pybind11::detail {

template <>
struct type_caster<topoopt::LinkKind> {
  PYBIND11_TYPE_CASTER(topoopt::LinkKind, const_name("typing.Literal['socket', 'shm', 'fabric']"));

  static handle cast(topoopt::LinkKind kind, return_value_policy, handle) {
    return str(topoopt::kindName(kind)).release();
  }
  bool load(handle source, bool) {
    if (!isinstance<str>(source)) return false;
    value = topoopt::kindNamed(source.cast<std::string>());
    return true;
  }
};

template <>
struct type_caster<topoopt::ZeroCopy> {
  PYBIND11_TYPE_CASTER(topoopt::ZeroCopy, const_name("typing.Literal['off', 'on', 'always']"));

  bool load(handle source, bool) {
    if (!isinstance<str>(source)) return false;
    value = topoopt::zeroCopyNamed(source.cast<std::string>());
    return true;
  }
};

}  // namespace pybind11::detail

namespace topoopt {

template <>
struct Record<LinkTraffic> {
  static constexpr auto python = pybind11::detail::const_name("torch_topoopt.plan.LinkTraffic");
  static constexpr auto fields = std::tuple(
      Field{"source", &LinkTraffic::source}, Field{"source_port", &LinkTraffic::source_port},
      Field{"target", &LinkTraffic::target}, Field{"target_port", &LinkTraffic::target_port},
      Field{"kind", &LinkTraffic::kind}, Field{"sent_bytes", &LinkTraffic::sent_bytes},
      Field{"relayed_bytes", &LinkTraffic::relayed_bytes},
      Field{"received_bytes", &LinkTraffic::received_bytes},
      Field{"overhead_bytes", &LinkTraffic::overhead_bytes},
      Field{"seconds", &LinkTraffic::seconds},
      Field{"zero_copy_bytes", &LinkTraffic::zero_copy_bytes},
      Field{"copied_bytes", &LinkTraffic::copied_bytes});
};

template <>
struct Record<LinkSpec> {
  static constexpr auto python =
      pybind11::detail::const_name("torch_topoopt.runtime.session_types.LinkSpec");
  static constexpr auto fields =
      std::tuple(Field{"link", &LinkSpec::link}, Field{"fd", &LinkSpec::fd},
                 Field{"sends", &LinkSpec::sends}, Field{"kind", &LinkSpec::kind},
                 Field{"peer", &LinkSpec::peer}, Field{"cable", &LinkSpec::cable},
                 Field{"tls_key", &LinkSpec::tls_key}, Field{"provider", &LinkSpec::provider},
                 Field{"threads", &LinkSpec::threads}, Field{"zero_copy", &LinkSpec::zero_copy});
};

template <>
struct Record<CableEnds> {
  static constexpr auto python =
      pybind11::detail::const_name("torch_topoopt.runtime.session_types.SessionCable");
  static constexpr auto fields = std::tuple(
      Field{"link", &CableEnds::link}, Field{"a", &CableEnds::a}, Field{"b", &CableEnds::b},
      Field{"duplex", &CableEnds::duplex}, Field{"rate", &CableEnds::rate});
};

template <>
struct Record<GroupConfig> {
  static constexpr auto python =
      pybind11::detail::const_name("torch_topoopt.runtime.session_types.GroupConfig");
  static constexpr auto fields = std::tuple(
      Field{"name", &GroupConfig::name}, Field{"channel", &GroupConfig::channel},
      Field{"rank", &GroupConfig::rank}, Field{"ranks", &GroupConfig::ranks},
      Field{"rings", &GroupConfig::rings}, Field{"grid", &GroupConfig::grid},
      Field{"servers", &GroupConfig::servers}, Field{"segment_fd", &GroupConfig::segment_fd},
      Field{"hops", &GroupConfig::hops}, Field{"routes", &GroupConfig::routes},
      Field{"cost", &GroupConfig::cost}, Field{"algorithm", &GroupConfig::algorithm},
      Field{"circuits", &GroupConfig::circuits},
      Field{"planned_routes_only", &GroupConfig::planned_routes_only});
};

template <>
struct Record<SupervisedRank> {
  static constexpr auto python =
      pybind11::detail::const_name("torch_topoopt.runtime.session_types.SupervisedRank");
  static constexpr auto fields = std::tuple(
      Field{"rank", &SupervisedRank::rank}, Field{"world_size", &SupervisedRank::world_size},
      Field{"server", &SupervisedRank::server}, Field{"attempt", &SupervisedRank::attempt},
      Field{"library", &SupervisedRank::library}, Field{"any_sender", &SupervisedRank::any_sender});
};

template <>
struct Record<SupervisorConfig> {
  static constexpr auto python =
      pybind11::detail::const_name("torch_topoopt.runtime.session_types.Supervision");
  static constexpr auto fields = std::tuple(
      Field{"of", &SupervisorConfig::of}, Field{"dump_path", &SupervisorConfig::dump_path},
      Field{"dumps_failures", &SupervisorConfig::dumps_failures},
      Field{"status_path", &SupervisorConfig::status_path},
      Field{"warns_of_status", &SupervisorConfig::warns_of_status},
      Field{"request_path", &SupervisorConfig::request_path},
      Field{"stacks_fd", &SupervisorConfig::stacks_fd},
      Field{"stacks_done_fd", &SupervisorConfig::stacks_done_fd},
      Field{"dump_limit", &SupervisorConfig::dump_limit});
};

}  // namespace topoopt
