// Choosing a kernel table: the best the CPU can run, or the one POWERINFER_FORCE_ISA names.
#pragma once

#include <span>
#include <string_view>

#include "kernels/kernel_table.h"

namespace powerinfer::kernels {

struct Isa {
  const KernelTable* table;
  bool (*supported)() noexcept;  ///< can this CPU run it
};

/// All instruction sets compiled into this library, best last.
std::span<const Isa> compiled_isas() noexcept;

/// The table in use for new models: $POWERINFER_FORCE_ISA if set, else the best supported.
/// Throws InvalidArgument when the variable names one that is unknown or that this CPU cannot run.
const KernelTable& select_kernels();

/// By name; throws as select_kernels().
const KernelTable& kernels_by_name(std::string_view name);

}  // namespace powerinfer::kernels
