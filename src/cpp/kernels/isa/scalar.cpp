// One lane of plain C++, for every processor. Its sums run column by column, in another order than the vector
// instruction sets': the difference between the two measures what rounding alone does to a model.
#include "quant/scalar.h"
#include "kernels/body/table.h"

namespace powerinfer::kernels {
namespace {

struct Tag {};
using Scalar = quant::ScalarVocabulary<Tag>;

}  // namespace

extern const KernelTable kScalarTable;
const KernelTable kScalarTable = body::make_table<Scalar>("scalar");

}  // namespace powerinfer::kernels
