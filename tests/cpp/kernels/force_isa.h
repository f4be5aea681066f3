// Sets POWERINFER_FORCE_ISA for this process; "" means unset.
#pragma once

#include <cstdlib>
#include <string>

namespace pi_test {

inline void force_isa(const std::string& name) {
#ifdef _WIN32
  _putenv_s("POWERINFER_FORCE_ISA", name.c_str());
#else
  setenv("POWERINFER_FORCE_ISA", name.c_str(), 1);
#endif
}

}  // namespace pi_test
