#include "powerinfer/sinks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/half.h"
#include "base/text.h"
#include "powerinfer/error.h"

namespace powerinfer {

namespace {

/// n_layers * width, both checked.
std::size_t table_size(std::size_t n_layers, std::size_t width) {
  constexpr std::size_t kMost = std::size_t{1} << 31;
  if (n_layers == 0 || width == 0 || n_layers > kMost || width > kMost) {
    throw InvalidArgument(base::text("sink: expected 1 to 2^31 layers and columns, got ", n_layers, " and ", width));
  }
  return n_layers * width;
}

void check_event(const TapEvent& event, std::size_t n_layers, std::size_t width) {
  if (event.width == width && static_cast<std::size_t>(event.layer) < n_layers) return;
  throw InvalidArgument(base::text("sink: made for ", n_layers, " layers of ", width, " columns, got layer ",
                                   event.layer, " with ", event.width, "; attach it to a point of that width"));
}

/// Rounds to f16, but nothing to infinity, and to zero only what is zero.
std::uint16_t to_half(float value) {
  constexpr float kLargest = 65504.0F;
  constexpr std::uint16_t kMagnitude = 0x7FFF;
  const float bounded = std::isnan(value) ? value : std::clamp(value, -kLargest, kLargest);
  const std::uint16_t half = base::float_to_half(bounded);
  const bool lost = (half & kMagnitude) == 0 && value != 0.0F;
  return static_cast<std::uint16_t>(lost ? half | 1U : half);
}

}  // namespace

ActivationCounter::ActivationCounter(std::size_t n_layers, std::size_t width)
    : width_(width), counts_(table_size(n_layers, width)), n_rows_(n_layers) {}

void ActivationCounter::on_tap(const TapEvent& event) {
  check_event(event, n_rows_.size(), width_);
  const std::lock_guard lock(mutex_);
  const auto layer = static_cast<std::size_t>(event.layer);
  std::uint64_t* counts = counts_.data() + layer * width_;
  for (std::size_t row = 0; row < event.n_rows; ++row) {
    const float* values = event.data + row * width_;
    for (std::size_t i = 0; i < width_; ++i) counts[i] += values[i] != 0.0F ? 1U : 0U;
  }
  n_rows_[layer] += event.n_rows;
}

std::vector<std::uint64_t> ActivationCounter::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::vector<std::uint64_t> ActivationCounter::n_rows() const {
  const std::lock_guard lock(mutex_);
  return n_rows_;
}

void ActivationCounter::reset() {
  const std::lock_guard lock(mutex_);
  std::ranges::fill(counts_, 0);
  std::ranges::fill(n_rows_, 0);
}

SquareSums::SquareSums(std::size_t n_layers, std::size_t width)
    : width_(width), sums_(table_size(n_layers, width)), n_rows_(n_layers) {}

void SquareSums::on_tap(const TapEvent& event) {
  check_event(event, n_rows_.size(), width_);
  const std::lock_guard lock(mutex_);
  const auto layer = static_cast<std::size_t>(event.layer);
  double* sums = sums_.data() + layer * width_;
  for (std::size_t row = 0; row < event.n_rows; ++row) {
    const float* values = event.data + row * width_;
    for (std::size_t i = 0; i < width_; ++i) sums[i] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  n_rows_[layer] += event.n_rows;
}

std::vector<double> SquareSums::sums() const {
  const std::lock_guard lock(mutex_);
  return sums_;
}

std::vector<std::uint64_t> SquareSums::n_rows() const {
  const std::lock_guard lock(mutex_);
  return n_rows_;
}

void SquareSums::reset() {
  const std::lock_guard lock(mutex_);
  std::ranges::fill(sums_, 0.0);
  std::ranges::fill(n_rows_, 0);
}

RowRecorder::RowRecorder(std::size_t n_layers, std::size_t width, const std::vector<std::size_t>& layers)
    : width_(width) {
  table_size(n_layers, width);
  wanted_.resize(n_layers);
  rows_.resize(n_layers);
  for (const std::size_t layer : layers) {
    if (layer >= n_layers) {
      throw InvalidArgument(base::text("sink: layer ", layer, " is out of range: there are ", n_layers));
    }
    wanted_[layer] = true;
  }
}

void RowRecorder::on_tap(const TapEvent& event) {
  check_event(event, rows_.size(), width_);
  const auto layer = static_cast<std::size_t>(event.layer);
  if (!wanted_[layer]) return;
  const std::lock_guard lock(mutex_);
  std::vector<std::uint16_t>& rows = rows_[layer];
  const std::size_t at = rows.size();
  rows.resize(at + event.n_rows * width_);
  std::transform(event.data, event.data + event.n_rows * width_, rows.begin() + static_cast<std::ptrdiff_t>(at),
                 to_half);
}

std::vector<std::uint16_t> RowRecorder::take(std::size_t layer) {
  if (layer >= rows_.size()) {
    throw InvalidArgument(base::text("sink: layer ", layer, " is out of range: there are ", rows_.size()));
  }
  const std::lock_guard lock(mutex_);
  return std::exchange(rows_[layer], {});
}

}  // namespace powerinfer
