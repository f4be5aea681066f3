// The processors this process may use.
#pragma once

#include <string>

namespace powerinfer::base {

/// Physical cores within the process's affinity (siblings of one core count once) and CPU quota; at least 1.
int usable_physical_cores();
/// Logical processors within affinity and quota; at least 1.
int usable_logical_cores();
/// Marketing name for reports; "unknown CPU" where the system does not tell.
std::string cpu_name();

}  // namespace powerinfer::base
