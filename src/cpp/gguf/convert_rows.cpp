// Rows from one element type to another, and transposition, in parallel: what converters and quantizers do to tensors.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/cpu.h"
#include "base/text.h"
#include "kernels/dispatch.h"
#include "parallel/thread_pool.h"
#include "powerinfer/error.h"
#include "powerinfer/gguf.h"
#include "quant/dtype.h"
#include "quant/quantize.h"

namespace powerinfer {
namespace {

constexpr std::size_t kValuesPerChunk = 1U << 15;
constexpr int kMaxThreads = 256;
constexpr float kHalfLimit = 65520.0F;  // rounds to infinity as a half

int threads_for(int n_threads, std::size_t n_chunks) {
  if (n_threads < 0 || n_threads > kMaxThreads) {
    throw InvalidArgument(base::text("n_threads: expected 0 (automatic) to ", kMaxThreads, ", got ", n_threads));
  }
  const int wanted = n_threads == 0 ? base::usable_physical_cores() : n_threads;
  return static_cast<int>(std::clamp<std::size_t>(n_chunks, 1, static_cast<std::size_t>(wanted)));
}

void check(const RowConversion& job) {
  for (const DType type : {job.source, job.target}) {
    if (!quant::can_quantize(type)) {
      throw UnsupportedError(base::text("convert: ", dtype_name(type), " holds indices, not weights"));
    }
    dtype_row_bytes(type, job.n_cols);
  }
  if (job.importance == nullptr) return;
  for (std::size_t i = 0; i < job.n_cols; ++i) {
    if (!(job.importance[i] >= 0.0F) || std::isinf(job.importance[i])) {
      throw InvalidArgument(base::text("importance of column ", i, ": expected a finite number >= 0, got ",
                                       job.importance[i], "; make the importance file anew"));
    }
  }
}

/// The first column whose magnitude is `limit` or more, or NaN; n if there is none.
std::size_t find_beyond(const float* x, std::size_t n, float limit) {
  const auto limit_bits = std::bit_cast<std::int32_t>(limit);
  std::int32_t greatest = 0;  // magnitudes order as their bits do, NaN last
  for (std::size_t i = 0; i < n; ++i) {
    greatest = std::max(greatest, std::bit_cast<std::int32_t>(x[i]) & 0x7FFFFFFF);
  }
  if (greatest < limit_bits) return n;
  std::size_t i = 0;
  while ((std::bit_cast<std::int32_t>(x[i]) & 0x7FFFFFFF) < limit_bits) ++i;
  return i;
}

class Converter {
 public:
  Converter(const RowConversion& job, void* out)
      : job_(job),
        out_(static_cast<std::uint8_t*>(out)),
        source_bytes_(dtype_row_bytes(job.source, job.n_cols)),
        target_bytes_(dtype_row_bytes(job.target, job.n_cols)),
        limit_(job.target == DType::kF16 ? kHalfLimit : INFINITY),
        kernels_(kernels::select_kernels()),
        to_floats_(kernels_.types[quant::dtype_index(job.source)].dequantize) {}

  void run() {
    const std::size_t rows = std::max<std::size_t>(1, kValuesPerChunk / job_.n_cols);
    const std::size_t n_chunks = (job_.n_rows + rows - 1) / rows;
    const int n_threads = threads_for(job_.n_threads, n_chunks);
    buffers_.assign(static_cast<std::size_t>(n_threads), std::vector<float>(job_.n_cols));
    parallel::ThreadPool pool(n_threads);
    pool.run(n_chunks, n_threads, [&](std::size_t chunk, int worker) noexcept {
      const std::size_t end = std::min(job_.n_rows, (chunk + 1) * rows);
      for (std::size_t row = chunk * rows; row < end; ++row)
        convert(row, buffers_[static_cast<std::size_t>(worker)].data());
    });
    if (bad_row_ != job_.n_rows) refuse(bad_row_);
  }

 private:
  const std::uint8_t* source(std::size_t row) const {
    return static_cast<const std::uint8_t*>(job_.data) + row * source_bytes_;
  }

  void convert(std::size_t row, float* buffer) noexcept {
    to_floats_(source(row), job_.n_cols, buffer);
    if (find_beyond(buffer, job_.n_cols, limit_) != job_.n_cols) {
      std::size_t seen = bad_row_;
      while (row < seen && !bad_row_.compare_exchange_weak(seen, row)) {
      }
      return;
    }
    std::uint8_t* to = out_ + row * target_bytes_;
    if (job_.source == job_.target) {
      std::memcpy(to, source(row), target_bytes_);
    } else if (job_.target == DType::kF16) {
      kernels_.f32_to_f16(buffer, job_.n_cols, reinterpret_cast<std::uint16_t*>(to));
    } else {
      quant::quantize(job_.target, buffer, job_.n_cols, to, job_.importance);
    }
  }

  [[noreturn]] void refuse(std::size_t row) {
    float* buffer = buffers_.front().data();
    to_floats_(source(row), job_.n_cols, buffer);
    const std::size_t column = find_beyond(buffer, job_.n_cols, limit_);
    const bool finite = std::isfinite(buffer[column]);
    throw FormatError(base::text("row ", row, ", column ", column, ": the value ", buffer[column],
                                 finite ? " is beyond F16; use BF16 or F32"
                                        : " is not a finite weight; the source is damaged, make or fetch it anew"));
  }

  const RowConversion& job_;
  std::uint8_t* out_;
  std::size_t source_bytes_;
  std::size_t target_bytes_;
  float limit_;
  const kernels::KernelTable& kernels_;
  void (*to_floats_)(const std::uint8_t*, std::size_t, float*) noexcept;
  std::vector<std::vector<float>> buffers_;  // one row for each worker
  std::atomic<std::size_t> bad_row_{job_.n_rows};
};

template <class T>
void transpose_as(const void* data, std::size_t n_rows, std::size_t n_cols, void* out, int n_threads) {
  constexpr std::size_t kTile = 64;  // a tile's rows and columns stay in the first-level cache
  const auto* from = static_cast<const std::uint8_t*>(data);
  auto* to = static_cast<std::uint8_t*>(out);
  const std::size_t n_chunks = (n_cols + kTile - 1) / kTile;
  const int wanted = threads_for(n_threads, n_chunks);
  parallel::ThreadPool pool(wanted);
  pool.run(n_chunks, wanted, [&](std::size_t chunk, int) noexcept {
    const std::size_t col_end = std::min(n_cols, (chunk + 1) * kTile);
    for (std::size_t row_begin = 0; row_begin < n_rows; row_begin += kTile) {
      const std::size_t row_end = std::min(n_rows, row_begin + kTile);
      for (std::size_t col = chunk * kTile; col < col_end; ++col) {
        for (std::size_t row = row_begin; row < row_end; ++row) {
          std::memcpy(to + (col * n_rows + row) * sizeof(T), from + (row * n_cols + col) * sizeof(T), sizeof(T));
        }
      }
    }
  });
}

}  // namespace

void convert_rows(const RowConversion& job, void* out) {
  check(job);
  if (job.n_rows != 0 && job.n_cols != 0) Converter(job, out).run();
}

void transpose(const void* data, std::size_t n_rows, std::size_t n_cols, std::size_t element_bytes, void* out,
               int n_threads) {
  switch (element_bytes) {
    case 1:
      return transpose_as<std::uint8_t>(data, n_rows, n_cols, out, n_threads);
    case 2:
      return transpose_as<std::uint16_t>(data, n_rows, n_cols, out, n_threads);
    case 4:
      return transpose_as<std::uint32_t>(data, n_rows, n_cols, out, n_threads);
    case 8:
      return transpose_as<std::uint64_t>(data, n_rows, n_cols, out, n_threads);
    default:
      throw InvalidArgument(base::text("transpose: expected elements of 1, 2, 4 or 8 bytes, got ", element_bytes));
  }
}

}  // namespace powerinfer
