// Assertions about our own code. Not for input: that gets a typed error.
#pragma once

#include <cassert>

#define PI_DCHECK(condition) assert(condition)
