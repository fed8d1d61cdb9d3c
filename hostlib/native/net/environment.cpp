#include "net/environment.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <stdexcept>

namespace netfold {
namespace {

std::optional<std::int64_t> number(const std::string &text, std::int64_t most) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_number = error == std::errc{} && end == text.data() + text.size() && text.front() != '-';
    return is_number && value <= most ? std::optional{value} : std::nullopt;
}

[[noreturn]] void refuse(const char *name, const std::string &text, const std::string &what) {
    throw std::invalid_argument(name + ("=" + text) + ": " + what);
}

}  // namespace

std::int64_t number_named(const char *name, std::int64_t otherwise, std::int64_t most, const std::string &what) {
    const char *named = std::getenv(name);
    if (named == nullptr) return otherwise;
    const std::optional<std::int64_t> found = number(named, most);
    if (!found) refuse(name, named, "it is " + what + ", 0 to " + std::to_string(most));
    return *found;
}

std::vector<int> numbers_named(const char *name, int most, const std::string &what) {
    const char *named = std::getenv(name);
    if (named == nullptr) return {};
    const std::string text = named;
    std::vector<int> found;
    std::istringstream parts(text + ",");  // an empty text is one part, and so is what follows a last comma
    for (std::string part; std::getline(parts, part, ',');) {
        const std::size_t dash = part.find('-', 1);
        const auto first = number(part.substr(0, dash), most);
        const auto last = dash == std::string::npos ? first : number(part.substr(dash + 1), most);
        if (!first || !last || *last < *first)
            refuse(name, text, "it is " + what + ", such as 2,3 or 2-5, 0 to " + std::to_string(most));
        for (auto each = *first; each <= *last; each++) found.push_back(static_cast<int>(each));
    }
    return found;
}

}  // namespace netfold
