#include "base/cpu.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/cgroup.h"
#include "base/text.h"

namespace powerinfer::base {
namespace {

/// Ids of the logical processors in this thread's affinity mask; empty where the system does not tell.
std::vector<int> usable_cpus() {
  constexpr std::size_t kMaxSets = 64;  // 65536 processors; the kernel refuses masks that are too short
  for (std::size_t n_sets = 1; n_sets <= kMaxSets; n_sets *= 2) {
    std::vector<cpu_set_t> mask(n_sets);
    const std::size_t n_bytes = n_sets * sizeof(cpu_set_t);
    if (::sched_getaffinity(0, n_bytes, mask.data()) != 0) continue;
    std::vector<int> cpus;
    for (std::size_t cpu = 0; cpu < n_bytes * 8; ++cpu) {
      if (CPU_ISSET_S(cpu, n_bytes, mask.data())) cpus.push_back(static_cast<int>(cpu));
    }
    return cpus;
  }
  return {};
}

int within_quota(std::size_t n_cores) {
  int n = static_cast<int>(n_cores);
  if (const std::optional<double> quota = read_cgroup_limits().n_cpus) {
    n = std::min(n, static_cast<int>(std::min(std::ceil(*quota), 1e6)));
  }
  return std::max(n, 1);
}

}  // namespace

int usable_physical_cores() {
  const std::vector<int> cpus = usable_cpus();
  if (cpus.empty()) return within_quota(std::thread::hardware_concurrency());
  std::set<std::string> cores;  // one entry per distinct list of siblings
  for (const int cpu : cpus) {
    std::ifstream in(text("/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    std::string siblings;
    if (!std::getline(in, siblings)) siblings = std::to_string(cpu);
    cores.insert(siblings);
  }
  return within_quota(cores.size());
}

int usable_logical_cores() {
  const std::vector<int> cpus = usable_cpus();
  return within_quota(cpus.empty() ? std::thread::hardware_concurrency() : cpus.size());
}

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(": ");
    if (line.compare(0, 10, "model name") == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

}  // namespace powerinfer::base
