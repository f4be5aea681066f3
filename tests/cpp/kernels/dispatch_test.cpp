// Which kernel table is chosen.
#include "kernels/dispatch.h"

#include <string>

#include "kernels/force_isa.h"
#include "powerinfer/error.h"
#include "test.h"

using namespace powerinfer;
using namespace powerinfer::kernels;
using pi_test::force_isa;

TEST(scalar_is_always_there_and_first) {
  const auto isas = compiled_isas();
  CHECK(!isas.empty());
  CHECK_EQ(std::string(isas.front().table->name), "scalar");
  CHECK(isas.front().supported());
}

TEST(names_are_distinct_and_found) {
  for (const Isa& isa : compiled_isas()) {
    if (isa.supported()) CHECK(&kernels_by_name(isa.table->name) == isa.table);
    for (const Isa& other : compiled_isas())
      CHECK((&isa == &other) == (std::string(isa.table->name) == other.table->name));
  }
}

TEST(the_best_supported_is_the_default) {
  force_isa("");
  const KernelTable* best = nullptr;
  for (const Isa& isa : compiled_isas()) {
    if (isa.supported()) best = isa.table;
  }
  CHECK(&select_kernels() == best);
}

TEST(the_variable_forces_one) {
  for (const Isa& isa : compiled_isas()) {
    force_isa(isa.table->name);
    if (isa.supported()) {
      CHECK(&select_kernels() == isa.table);
    } else {
      CHECK_THROWS(select_kernels(), InvalidArgument, "cannot run");
    }
  }
  force_isa("");
}

TEST(tables_are_different_code) {
  // Forcing would prove nothing if two names meant the same kernels.
  const auto isas = compiled_isas();
  for (const Isa& isa : isas) {
    for (const Isa& other : isas) {
      if (&isa != &other) CHECK(isa.table->types[0].dot != other.table->types[0].dot);
    }
  }
}

TEST(unknown_names_are_refused_with_the_list) {
  force_isa("sse9");
  CHECK_THROWS(select_kernels(), InvalidArgument, "POWERINFER_FORCE_ISA");
  CHECK_THROWS(select_kernels(), InvalidArgument, "'sse9'");
  CHECK_THROWS(select_kernels(), InvalidArgument, "scalar");
  force_isa("");
  CHECK_THROWS(kernels_by_name("AVX2"), InvalidArgument, "lower case");
  CHECK_THROWS(kernels_by_name(""), InvalidArgument, "unknown");
}

TEST_MAIN()
