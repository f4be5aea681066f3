// The generated table of character classes (see scripts/make_unicode_tables.py); unicode.h is what to use.
#pragma once

#include <span>

#include "tokenizer/unicode.h"

namespace powerinfer::tokenizer {

struct ClassRange {
  char32_t first;
  char32_t last;  ///< inclusive
  CharClass kind;
};

/// Ascending and disjoint.
std::span<const ClassRange> class_ranges() noexcept;

}  // namespace powerinfer::tokenizer
