#include <algorithm>
#include <fstream>
#include <string>

#include "base/cgroup.h"
#include "base/memory.h"

namespace powerinfer::base {
namespace {

std::uint64_t machine_available_bytes() {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    constexpr std::string_view kKey = "MemAvailable:";
    if (line.compare(0, kKey.size(), kKey) == 0) return std::stoull(line.substr(kKey.size())) * 1024;
  }
  return 0;
}

}  // namespace

std::uint64_t available_memory_bytes() {
  const std::uint64_t machine = machine_available_bytes();
  const std::optional<std::uint64_t> group = read_cgroup_limits().available_bytes;
  if (!group) return machine;
  return machine == 0 ? *group : std::min(machine, *group);
}

}  // namespace powerinfer::base
