// Nothing is allocated per token: 64 tokens in every mode make no call to operator new or malloc.
#include "test.h"

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/tiny_model.h"
#include "powerinfer/context.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int> n_allocations{0};

void count() {
  if (counting.load(std::memory_order_relaxed)) n_allocations.fetch_add(1, std::memory_order_relaxed);
}

void* counted(std::size_t size) {
  count();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// glibc lets a program put its own malloc in front; sanitizers have theirs there already.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" void* __libc_malloc(std::size_t size);
extern "C" void* malloc(std::size_t size) {
  count();
  return __libc_malloc(size);
}
#endif

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

using namespace powerinfer;

TEST(no_allocation_per_token) {
  for (const char* architecture : {"llama", "falcon", "opt"}) {
    for (const bool transposed : {true, false}) {
      const tiny::ModelFile file({.architecture = architecture, .type = DType::kQ8_0, .transposed_down = transposed});
      const auto model = Model::load(file.path());
      for (const Sparsity mode : {Sparsity::kDense, Sparsity::kExact, Sparsity::kPredictor}) {
        Context context(model, {.sparsity = mode, .n_threads = 2});
        const std::vector<Token> prompt(250, 3);
        context.eval(prompt);
        const Token token = 5;
        n_allocations = 0;
        counting = true;
        for (int i = 0; i < 64; ++i) context.eval({&token, 1});  // crosses into the second cache block
        counting = false;
        CHECK_EQ(n_allocations.load(), 0);
      }
    }
  }
}

TEST(the_counter_counts) {
  n_allocations = 0;
  counting = true;
  std::vector<int> made(10);
  counting = false;
  CHECK(n_allocations.load() >= 1 && made.size() == 10);
}

TEST_MAIN()
