// Ready-made sinks for taps: statistics over everything that flows past, at the engine's speed. Each may be read by
// other threads while a context feeds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "powerinfer/context.h"

namespace powerinfer {

/// Counts, per layer and value, how often it is not zero (NaN is not zero); on the point kH: a neuron's activations.
class ActivationCounter final : public TapSink {
 public:
  /// Throws InvalidArgument unless both are positive.
  ActivationCounter(std::size_t n_layers, std::size_t width);
  void on_tap(const TapEvent& event) override;  ///< throws InvalidArgument on rows of another width
  std::vector<std::uint64_t> counts() const;    ///< [n_layers, width]
  std::vector<std::uint64_t> n_rows() const;    ///< [n_layers] rows seen
  void reset();

 private:
  std::size_t width_;
  mutable std::mutex mutex_;
  std::vector<std::uint64_t> counts_;
  std::vector<std::uint64_t> n_rows_;
};

/// Sums, per layer and column, the squares of what flows past: what importance-aware quantization weighs columns with.
class SquareSums final : public TapSink {
 public:
  /// Throws InvalidArgument unless both are positive.
  SquareSums(std::size_t n_layers, std::size_t width);
  void on_tap(const TapEvent& event) override;  ///< throws InvalidArgument on rows of another width
  std::vector<double> sums() const;             ///< [n_layers, width]
  std::vector<std::uint64_t> n_rows() const;    ///< [n_layers] rows seen
  void reset();

 private:
  std::size_t width_;
  mutable std::mutex mutex_;
  std::vector<double> sums_;
  std::vector<std::uint64_t> n_rows_;
};

/// Keeps the rows of some layers as half floats until they are taken. Nothing becomes infinite, and zero only what is.
class RowRecorder final : public TapSink {
 public:
  /// Throws InvalidArgument unless n_layers and width are positive and all `layers` below n_layers.
  RowRecorder(std::size_t n_layers, std::size_t width, const std::vector<std::size_t>& layers);
  void on_tap(const TapEvent& event) override;  ///< throws InvalidArgument on rows of another width
  std::size_t width() const { return width_; }
  /// The rows of a layer since the last call, as f16 bits [n_rows, width]; throws InvalidArgument on an unknown layer.
  std::vector<std::uint16_t> take(std::size_t layer);

 private:
  std::size_t width_;
  std::vector<bool> wanted_;
  std::mutex mutex_;
  std::vector<std::vector<std::uint16_t>> rows_;
};

}  // namespace powerinfer
