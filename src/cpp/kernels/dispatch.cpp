#include "kernels/dispatch.h"

#include <string>

#include "base/env.h"
#include "base/text.h"
#include "kernels/isa_list.h"
#include "powerinfer/error.h"

namespace powerinfer::kernels {
namespace {

constexpr const char* kForceVariable = "POWERINFER_FORCE_ISA";

/// `source` begins the message, e.g. the variable's name.
const KernelTable& find(std::string_view name, std::string_view source) {
  std::string known;
  for (const Isa& isa : isa_list()) {
    if (name == isa.table->name) {
      if (isa.supported()) return *isa.table;
      throw InvalidArgument(base::text(source, ": this processor cannot run '", name, "'; choose another or unset it"));
    }
    known += base::text(known.empty() ? "" : ", ", isa.table->name);
  }
  throw InvalidArgument(
      base::text(source, ": unknown instruction set '", name, "'; this build has: ", known, " (names are lower case)"));
}

}  // namespace

std::span<const Isa> compiled_isas() noexcept { return isa_list(); }

const KernelTable& kernels_by_name(std::string_view name) { return find(name, "instruction set"); }

const KernelTable& select_kernels() {
  if (const auto forced = base::environment(kForceVariable)) return find(*forced, kForceVariable);
  const KernelTable* best = nullptr;
  for (const Isa& isa : isa_list()) {
    if (isa.supported()) best = isa.table;
  }
  return *best;  // scalar always runs
}

}  // namespace powerinfer::kernels
