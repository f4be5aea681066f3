// The CPU backend: runs a plan with the kernel table of one instruction set on a pool of threads.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "kernels/kernel_table.h"

namespace powerinfer::parallel {
class ThreadPool;
}

namespace powerinfer::ops {

std::unique_ptr<backend::Backend> make_cpu_backend(const kernels::KernelTable& kernels);

/// The executor's thread pool; null for another backend's executor. For tests of the scheduler.
parallel::ThreadPool* thread_pool_of(backend::Executor& executor);

}  // namespace powerinfer::ops
