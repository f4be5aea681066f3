// The kernel table of a vocabulary: every kernel for every format of the list.
#pragma once

#include "kernels/body/axpy.h"
#include "kernels/body/dot.h"
#include "kernels/body/sign.h"
#include "kernels/body/vector.h"
#include "kernels/kernel_table.h"
#include "quant/formats.h"

namespace powerinfer::kernels::body {

template <class V, class Format>
constexpr DTypeKernels make_dtype_kernels() {
  if constexpr (Format::kIsWeight) {
    return {dot<V, Format>, axpy<V, Format>, dequantize<V, Format>};
  } else {
    return {};
  }
}

template <class V, class... Formats>
constexpr KernelTable make_table(const char* name, quant::FormatList<Formats...>) {
  static_assert(sizeof...(Formats) == kMaxDTypes);
  return {name,
          {make_dtype_kernels<V, Formats>()...},
          quantize_input<V>,
          rms_norm<V>,
          layer_norm<V>,
          add<V>,
          scale<V>,
          max<V>,
          exp_sum<V>,
          silu<V>,
          gelu_tanh<V>,
          mul<V>,
          f32_to_f16<V>,
          sign_scores<V>};
}

template <class V>
constexpr KernelTable make_table(const char* name) {
  return make_table<V>(name, quant::AllFormats{});
}

}  // namespace powerinfer::kernels::body
