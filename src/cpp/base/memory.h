// How much memory this process may still use.
#pragma once

#include <cstdint>

namespace powerinfer::base {

/// Bytes that can be allocated without swapping, limits of control groups respected. 0 when the system does not tell.
std::uint64_t available_memory_bytes();

}  // namespace powerinfer::base
