// x86: the compiler's run-time library asks cpuid, and xgetbv for what the operating system saves.
#include "kernels/cpu_features.h"

namespace powerinfer::kernels {

bool cpu_runs_scalar() noexcept { return true; }

bool cpu_runs_avx2() noexcept {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("f16c") != 0;
}

bool cpu_runs_avx512() noexcept {
  return cpu_runs_avx2() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

bool cpu_runs_avx512_vnni() noexcept { return cpu_runs_avx512() && __builtin_cpu_supports("avx512vnni") != 0; }

bool cpu_runs_neon() noexcept { return false; }

}  // namespace powerinfer::kernels
