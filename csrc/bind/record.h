// Records: C++ structs that are Python objects with the same fields, converted by field name. So
// Python needs no second form of its data.

#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace topoopt {

// A field of T: its Python name and its C++ member.
template <typename Pointer>
struct Field {
  const char* name;
  Pointer member;
};
template <typename Pointer>
Field(const char*, Pointer) -> Field<Pointer>;

// The Python class of a C++ type: its name `python`, and `fields`, which are read from any object
// and passed to the constructor, unless there is a function `make`.
template <typename T>
struct Record;

template <typename T>
concept IsRecord = requires { Record<T>::fields; };

// The Python class of a record.
template <IsRecord T>
pybind11::object pythonClass() {
  const std::string path = Record<T>::python.text;
  const size_t dot = path.rfind('.');
  return pybind11::module_::import(path.substr(0, dot).c_str()).attr(path.c_str() + dot + 1);
}

// The type that a field of type T is loaded as: holders of bound classes are not const.
template <typename T>
struct Loaded {
  using Type = T;
};
template <typename T>
struct Loaded<std::shared_ptr<const T>> {
  using Type = std::shared_ptr<T>;
};

// Converts a value for Python's records, which hold tuples instead of lists.
template <typename T>
pybind11::object inRecord(const T& value) {
  return pybind11::cast(value);
}
template <typename T>
pybind11::object inRecord(const std::vector<T>& values) {
  pybind11::tuple made(values.size());
  for (size_t i = 0; i < values.size(); ++i) made[i] = inRecord(values[i]);
  return made;
}

}  // namespace topoopt

namespace pybind11::detail {

template <topoopt::IsRecord T>
struct type_caster<T> {
  PYBIND11_TYPE_CASTER(T, topoopt::Record<T>::python);

  bool load(handle source, bool) {
    return std::apply(
        [&](const auto&... field) {
          return (loadField(source, field.name, value.*field.member) && ...);
        },
        topoopt::Record<T>::fields);
  }

  static handle cast(const T& value, return_value_policy, handle) {
    if constexpr (requires { topoopt::Record<T>::make(value); }) {
      return topoopt::Record<T>::make(value).release();
    } else {
      const object made = std::apply(
          [&](const auto&... field) {
            return topoopt::pythonClass<T>()(arg(field.name) =
                                                 topoopt::inRecord(value.*field.member)...);
          },
          topoopt::Record<T>::fields);
      return made.inc_ref();
    }
  }

 private:
  template <typename Member>
  static bool loadField(handle source, const char* name, Member& member) {
    const auto found = reinterpret_steal<object>(PyObject_GetAttrString(source.ptr(), name));
    if (!found) {
      if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw error_already_set();
      PyErr_Clear();
      return false;
    }
    using Type = typename topoopt::Loaded<Member>::Type;
    make_caster<Type> caster;
    if (!caster.load(found, true)) return false;
    member = cast_op<Type&&>(std::move(caster));
    return true;
  }
};

}  // namespace pybind11::detail
