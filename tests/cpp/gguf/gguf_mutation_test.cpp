// 2,000 seeded mutants of a small model file: each opens or gives a typed error, and what opens can be read whole.
#include <chrono>

#include "fuzz/mutate.h"
#include "fuzz/small_model.h"
#include "gguf/temp_folder.h"
#include "powerinfer/error.h"
#include "powerinfer/gguf.h"
#include "test.h"

using namespace powerinfer;
using namespace pi_test;

namespace {

/// Touches everything a caller can reach; the sum keeps it from being optimised away.
std::size_t read_everything(const GgufFile& file) {
  std::size_t sum = 0;
  for (const auto& [key, value] : file.metadata()) {
    sum += key.size() + value.index();
    if (file.find(key) != &value) throw std::logic_error("find() gives another entry for " + key);
  }
  for (const TensorInfo& tensor : file.tensors()) {
    const std::byte* bytes = file.data(tensor);
    for (std::uint64_t i = 0; i < tensor.n_bytes; ++i) sum += static_cast<std::size_t>(bytes[i]);
    if (file.find_tensor(tensor.name) != &tensor) throw std::logic_error("find_tensor() gives another tensor");
  }
  return sum;
}

}  // namespace

TEST(mutants_open_or_give_a_typed_error) {
  constexpr std::uint64_t kMutants = 2000;
  const TempFolder folder;
  const std::filesystem::path path = folder / "mutant.gguf";
  pi_fuzz::SmallModel::write(path);
  const std::string original = read_file(path);
  const GgufFile model = GgufFile::open(path);
  CHECK(read_everything(model) > 0);
  const auto header_bytes = static_cast<std::size_t>(model.tensors()[0].offset);

  int n_opened = 0;
  int n_format = 0;
  int n_unsupported = 0;
  double slowest_ms = 0;
  for (std::uint64_t seed = 1; seed <= kMutants; ++seed) {
    // A new name each: the first file may still be mapped.
    const std::filesystem::path mutant = folder / ("mutant-" + std::to_string(seed) + ".gguf");
    write_file(mutant, pi_fuzz::Mutator(seed).mutate(original, header_bytes));
    const auto start = std::chrono::steady_clock::now();
    try {
      const GgufFile file = GgufFile::open(mutant, seed % 2 == 0 ? FileAccess::kMmap : FileAccess::kRead);
      CHECK(read_everything(file) > 0);
      ++n_opened;
    } catch (const FormatError& error) {
      ++n_format;
      CHECK(std::string(error.what()).find(mutant.string()) == 0);
    } catch (const UnsupportedError& error) {
      ++n_unsupported;
      CHECK(std::string(error.what()).find(mutant.string()) == 0);
    } catch (const std::exception& error) {
      pi_test::fail(__FILE__, __LINE__, "seed " + std::to_string(seed) + ": " + error.what());
    }
    slowest_ms = std::max(slowest_ms,
                          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    std::filesystem::remove(mutant);
  }
  std::cout << kMutants << " mutants: " << n_opened << " opened, " << n_format << " FormatError, " << n_unsupported
            << " UnsupportedError, slowest " << slowest_ms << " ms\n";
  // The mutator must neither miss the structure nor destroy every file at the first byte.
  CHECK(n_opened > 100);
  CHECK(n_format > 500);
  CHECK(n_unsupported > 10);
  CHECK(slowest_ms < 2000);
}

TEST(mutants_depend_on_the_seed_alone) {
  const std::string original(1000, 'x');
  CHECK_EQ(pi_fuzz::Mutator(7).mutate(original, 100), pi_fuzz::Mutator(7).mutate(original, 100));
  CHECK(pi_fuzz::Mutator(7).mutate(original, 100) != pi_fuzz::Mutator(8).mutate(original, 100));
}

TEST_MAIN()
