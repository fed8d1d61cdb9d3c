// Numbers that environment variables name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace netfold {

// `otherwise` if there is no such variable. Throws std::invalid_argument, which says what it is, if that is no number
// from 0 to `most`.
std::int64_t number_named(const char *name, std::int64_t otherwise, std::int64_t most, const std::string &what);

// Numbers and ranges of them, such as 2,3 or 2-5; none if there is no such variable. Throws std::invalid_argument.
std::vector<int> numbers_named(const char *name, int most, const std::string &what);

}  // namespace netfold
