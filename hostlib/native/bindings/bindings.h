// Shared by the binding files of hostlib._engine. No other file depends on Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "block_float/block_float.h"
#include "net/stats.h"

namespace netfold {

// Of numpy or torch, writable.
using Values = nanobind::ndarray<nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <typename T>
using Vector = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <typename T>
using Matrix = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

template <typename T>
Vector<T> new_vector(std::size_t size) {
    T *data = new T[size];
    return Vector<T>(data, {size}, nanobind::capsule(data, [](void *p) noexcept { delete[] static_cast<T *>(p); }));
}

// Throws std::invalid_argument, Python's ValueError, if the value does not fit.
void require(bool fits, const std::string &what);

// Throws std::invalid_argument for dtypes that no switch sums.
DType dtype_of(const Values &x);

nanobind::dict counted(const Stats &stats);

// The arguments of an echo(): the packet's bytes, and the timeout. Throws std::invalid_argument for what is no packet.
std::vector<std::uint8_t> packet_of(const nanobind::bytes &question);
std::int64_t nanoseconds(double seconds);

void bind_check_words(nanobind::module_ &m);
void bind_engine(nanobind::module_ &m);
void bind_scatter(nanobind::module_ &m);
void bind_shared_sum(nanobind::module_ &m);
void bind_server(nanobind::module_ &m);
void bind_multicaster(nanobind::module_ &m);
void bind_blocks(nanobind::module_ &m);
void bind_tensor_blocks(nanobind::module_ &m);

}  // namespace netfold
