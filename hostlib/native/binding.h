// What the binding files of hostlib._engine share.
#pragma once

#include <nanobind/nanobind.h>

#include "lane.h"

namespace netfold {

nanobind::dict counted(const Stats &stats);
void bind_multicaster(nanobind::module_ &m);

}  // namespace netfold
