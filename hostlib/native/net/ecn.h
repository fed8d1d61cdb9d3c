// Explicit Congestion Notification, the last two bits of an IPv4 header's second byte (RFC 3168).
#pragma once

namespace netfold::ecn {

// CAPABLE: the sender answers to marks, ECT(0). MARKED: a queue on the way has grown, CE. A sender may say that itself,
// of what its packet answers.
inline constexpr int BITS = 3, CAPABLE = 2, MARKED = 3;

inline bool is_marked(int type_of_service) { return (type_of_service & BITS) == MARKED; }

}  // namespace netfold::ecn
