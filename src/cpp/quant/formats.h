// The list of element types: the one place that names them all. A type's place is its dtype_index.
#pragma once

#include "quant/bf16.h"
#include "quant/f16.h"
#include "quant/f32.h"
#include "quant/i32.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

namespace powerinfer::quant {

template <class... Formats>
struct FormatList {
  static constexpr std::size_t kSize = sizeof...(Formats);
};

using AllFormats = FormatList<F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K, Q5_K, Q6_K, I32>;

}  // namespace powerinfer::quant
