// What the running processor (and its operating system) can execute. One *_x86 / *_generic file is linked.
#pragma once

namespace powerinfer::kernels {

bool cpu_runs_scalar() noexcept;
bool cpu_runs_avx2() noexcept;         ///< AVX2, FMA and F16C
bool cpu_runs_avx512() noexcept;       ///< AVX-512 F, BW, DQ and VL
bool cpu_runs_avx512_vnni() noexcept;  ///< that and VNNI
bool cpu_runs_neon() noexcept;

}  // namespace powerinfer::kernels
