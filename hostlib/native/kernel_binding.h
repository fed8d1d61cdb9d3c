// The kernels for Python. Apart from kernel.h, which knows nothing of Python.
#pragma once

#include <nanobind/nanobind.h>

namespace netfold {

void bind_kernels(nanobind::module_ &m);

}  // namespace netfold
