// Limits that Linux control groups (v1 and v2) set for this process. Portable code over text files; systems without
// them simply have no limits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace powerinfer::base {

struct CgroupLimits {
  std::optional<std::uint64_t> available_bytes;  ///< memory limit minus what is used and cannot be reclaimed
  std::optional<double> n_cpus;                  ///< CPU time per time: 1.5 = one and a half cores
};

/// The tightest limits of this process's groups and all their parents. `root` is the file system root; tests give a
/// folder with their own proc/self/{cgroup,mountinfo} and group files in it.
CgroupLimits read_cgroup_limits(const std::filesystem::path& root = "/");

}  // namespace powerinfer::base
