#include "base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace powerinfer::base {
namespace {

namespace fs = std::filesystem;

std::optional<double> read_number(const fs::path& path) {
  std::ifstream in(path);
  double value = 0;
  if (!(in >> value)) return std::nullopt;  // also "max"
  return value;
}

double read_stat(const fs::path& path, std::string_view key) {
  std::ifstream in(path);
  std::string name;
  double value = 0;
  while (in >> name >> value) {
    if (name == key) return value;
  }
  return 0;
}

template <class T>
void tighten(std::optional<T>& limit, T value) {
  limit = limit ? std::min(*limit, value) : value;
}

void add_memory(const fs::path& group, const char* limit_file, const char* usage_file, const char* cache_key,
                CgroupLimits& limits) {
  const std::optional<double> limit = read_number(group / limit_file);
  const std::optional<double> usage = read_number(group / usage_file);
  // v1 says "no limit" with a number near 2^63.
  if (!limit || !usage || *limit >= 9e18) return;
  const double used = *usage - read_stat(group / "memory.stat", cache_key);
  tighten(limits.available_bytes, static_cast<std::uint64_t>(std::max(0.0, *limit - std::max(0.0, used))));
}

void add_cpu(std::optional<double> quota, std::optional<double> period, CgroupLimits& limits) {
  if (quota && period && *quota > 0 && *period > 0) tighten(limits.n_cpus, *quota / *period);
}

void add_group(const fs::path& group, CgroupLimits& limits) {
  add_memory(group, "memory.max", "memory.current", "inactive_file", limits);
  add_memory(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", limits);
  std::ifstream cpu_max(group / "cpu.max");
  double quota = 0;
  double period = 0;
  if (cpu_max >> quota >> period) add_cpu(quota, period, limits);
  add_cpu(read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us"), limits);
}

struct Mount {
  std::string root;         // the part of the hierarchy that is mounted
  std::string mount_point;  // where
  std::string options;      // v1: its controllers; v2: empty
};

/// Mounted control group hierarchies, from lines "id parent major:minor root mount_point options ... - type source
/// super".
std::vector<Mount> read_mounts(const fs::path& path) {
  std::vector<Mount> mounts;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line.substr(0, dash));
    std::istringstream right(line.substr(dash + 3));
    std::string skip;
    std::string type;
    std::string options;
    Mount mount;
    left >> skip >> skip >> skip >> mount.root >> mount.mount_point;
    right >> type >> skip >> options;
    if (type == "cgroup") mount.options = text(",", options, ",");
    if (type == "cgroup" || type == "cgroup2") mounts.push_back(std::move(mount));
  }
  return mounts;
}

/// The group's folders, from the innermost to the mount point. Inside a container the group's path may name folders
/// of the host that cannot be seen; then the mount point itself is the group.
void add_hierarchy(const fs::path& root, const Mount& mount, std::string_view group_path, CgroupLimits& limits) {
  const fs::path top = root / fs::path(mount.mount_point).relative_path();
  std::string_view below = group_path;
  if (mount.root != "/" && below.substr(0, mount.root.size()) == mount.root) below.remove_prefix(mount.root.size());
  fs::path relative = fs::path(below).relative_path().lexically_normal();
  std::error_code error;
  if (relative.empty() || *relative.begin() == ".." || !fs::is_directory(top / relative, error)) relative.clear();
  for (;; relative = relative.parent_path()) {
    add_group(top / relative, limits);
    if (relative.empty()) break;
  }
}

}  // namespace

CgroupLimits read_cgroup_limits(const std::filesystem::path& root) {
  CgroupLimits limits;
  const std::vector<Mount> mounts = read_mounts(root / "proc/self/mountinfo");
  std::ifstream groups(root / "proc/self/cgroup");
  // Lines "hierarchy:controllers:path"; v2 has no controllers.
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string_view path = std::string_view(line).substr(second + 1);
    for (const Mount& mount : mounts) {
      const bool same =
          controllers.empty()
              ? mount.options.empty()
              : mount.options.find(text(",", controllers.substr(0, controllers.find(',')), ",")) != std::string::npos;
      if (same) add_hierarchy(root, mount, path, limits);
    }
  }
  return limits;
}

}  // namespace powerinfer::base
