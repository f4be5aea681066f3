// Activation functions: one table, used by dense and sparse paths and by loading.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "backend/plan.h"
#include "kernels/kernel_table.h"

namespace powerinfer::ops {

/// x = act(x) for n values (for drelu the gate's half: relu).
void activate(const backend::Activation& activation, const kernels::KernelTable& kernels, std::size_t n,
              float* x) noexcept;

/// Whether act(x) is exactly zero for a range of x, so that zeros can be skipped without loss.
bool has_true_zeros(const backend::Activation& activation) noexcept;

/// "relu", "fatrelu:0.01", ... Throws UnsupportedError with the list of names, InvalidArgument on a bad parameter.
backend::Activation parse_activation(std::string_view text);
/// The inverse of parse_activation.
std::string activation_text(const backend::Activation& activation);
/// "relu, relu2, ..." for messages.
std::string supported_activations();

}  // namespace powerinfer::ops
