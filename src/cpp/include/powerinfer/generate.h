// Text generation over a context: evaluates a prompt, samples, detokenizes, stops.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "powerinfer/context.h"
#include "powerinfer/sampler.h"

namespace powerinfer {

struct GenerateOptions {
  int max_tokens = -1;                 ///< -1: until the end of generation or the context is full
  std::vector<std::string> stop = {};  ///< text that ends the generation; never part of the output
  bool ignore_eos = false;             ///< end-of-generation tokens are never sampled
};

enum class FinishReason {
  kNone,    ///< more may follow
  kStop,    ///< end-of-generation token or stop string
  kLength,  ///< max_tokens or context full
};

struct Piece {
  std::string text;  ///< whole UTF-8 characters; may be empty
  Token token = kNoToken;
  float logprob = 0.0F;
  FinishReason finish_reason = FinishReason::kNone;
};

/// Pull-style generator on sequence 0. The context must not be used otherwise meanwhile.
class Generator {
 public:
  /// `prompt` is appended to what the context holds; it needs at least one token, whose logits start the generation.
  /// Throws InvalidArgument on an empty prompt, an empty stop string, max_tokens < -1
  /// or a logit-bias token outside the vocabulary.
  Generator(Context& context, Sampler& sampler, std::vector<Token> prompt, GenerateOptions options = {});
  ~Generator();
  Generator(Generator&&) noexcept;

  /// The next piece, or nothing after the one with a finish reason. Errors as Context::forward(); after a
  /// CancelledError the next call goes on where the context stands.
  std::optional<Piece> next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace powerinfer
