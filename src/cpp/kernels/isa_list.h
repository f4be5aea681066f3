// The instruction sets this build has. The list is written by cmake/Isa.cmake from the units it compiles.
#pragma once

#include <span>

#include "kernels/dispatch.h"

namespace powerinfer::kernels {

/// Best last.
std::span<const Isa> isa_list() noexcept;

}  // namespace powerinfer::kernels
