// A door for tests: parts of a context that the public API does not show.
#pragma once

#include "powerinfer/context.h"

namespace powerinfer::backend {
class Executor;
}

namespace powerinfer::engine {

struct ContextAccess {
  /// The context's executor, e.g. to set how its thread pool hands out chunks.
  static backend::Executor& executor(Context& context);
};

}  // namespace powerinfer::engine
