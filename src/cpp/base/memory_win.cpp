#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include "base/memory.h"

namespace powerinfer::base {

std::uint64_t available_memory_bytes() {
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof(status);
  return ::GlobalMemoryStatusEx(&status) ? status.ullAvailPhys : 0;
}

}  // namespace powerinfer::base
