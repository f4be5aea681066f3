// Other processors: only instruction sets that are part of the target's baseline are compiled, so what is there runs.
#include "kernels/cpu_features.h"

namespace powerinfer::kernels {

bool cpu_runs_scalar() noexcept { return true; }
bool cpu_runs_avx2() noexcept { return false; }
bool cpu_runs_avx512() noexcept { return false; }
bool cpu_runs_avx512_vnni() noexcept { return false; }
bool cpu_runs_neon() noexcept { return true; }

}  // namespace powerinfer::kernels
