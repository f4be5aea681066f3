#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include "base/cpu.h"

#include <windows.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <thread>
#include <vector>

namespace powerinfer::base {
namespace {

// Affinity masks describe the process's own group of at most 64 processors; larger machines use the first such group.
DWORD_PTR process_mask() {
  DWORD_PTR process = 0;
  DWORD_PTR system = 0;
  return ::GetProcessAffinityMask(::GetCurrentProcess(), &process, &system) ? process : 0;
}

}  // namespace

int usable_physical_cores() {
  const DWORD_PTR mask = process_mask();
  DWORD n_bytes = 0;
  ::GetLogicalProcessorInformationEx(RelationProcessorCore, nullptr, &n_bytes);
  std::vector<std::byte> storage(n_bytes);
  auto* first = reinterpret_cast<SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX*>(storage.data());
  if (mask == 0 || n_bytes == 0 || !::GetLogicalProcessorInformationEx(RelationProcessorCore, first, &n_bytes)) {
    return usable_logical_cores();
  }
  int n_cores = 0;
  for (DWORD at = 0; at < n_bytes;) {
    const auto* core = reinterpret_cast<const SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX*>(storage.data() + at);
    const GROUP_AFFINITY& affinity = core->Processor.GroupMask[0];
    if (affinity.Group == 0 && (affinity.Mask & mask) != 0) ++n_cores;
    at += core->Size;
  }
  return std::max(n_cores, 1);
}

int usable_logical_cores() {
  const DWORD_PTR mask = process_mask();
  const int n = mask == 0 ? static_cast<int>(std::thread::hardware_concurrency()) : std::popcount(mask);
  return std::max(n, 1);
}

std::string cpu_name() {
  char name[256] = "";
  DWORD n_bytes = sizeof(name);
  const LSTATUS status = ::RegGetValueA(HKEY_LOCAL_MACHINE, "HARDWARE\\DESCRIPTION\\System\\CentralProcessor\\0",
                                        "ProcessorNameString", RRF_RT_REG_SZ, nullptr, name, &n_bytes);
  return status == ERROR_SUCCESS && name[0] != '\0' ? name : "unknown CPU";
}

}  // namespace powerinfer::base
