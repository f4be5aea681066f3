// Errors, limits and state of contexts and models.
#include "test.h"

#include <atomic>
#include <thread>

#include "engine/tiny_model.h"
#include "powerinfer/context.h"
#include "powerinfer/error.h"

using namespace powerinfer;

namespace {

std::vector<Token> some_tokens(std::size_t n) {
  std::vector<Token> tokens(n);
  for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<Token>(i * 7 % 256);
  return tokens;
}

}  // namespace

TEST(a_full_context_is_an_error_that_changes_nothing) {
  const tiny::ModelFile file({});
  Context context(Model::load(file.path()), {.n_ctx = 10});
  context.eval(some_tokens(8));
  CHECK_THROWS(context.eval(some_tokens(3)), StateError, "full");
  CHECK_EQ(context.n_past(), 8);
  context.eval(some_tokens(2));
  CHECK_EQ(context.n_past(), 10);
  CHECK_THROWS(context.eval(some_tokens(1)), StateError, "n_ctx");
  context.truncate(9);
  context.eval(some_tokens(1));
  context.reset();
  CHECK_EQ(context.n_past(), 0);
}

TEST(bad_arguments_are_named) {
  const tiny::ModelFile file({});
  const auto model = Model::load(file.path());
  Context context(model);
  CHECK_THROWS(context.eval({}), InvalidArgument, "empty");
  CHECK_THROWS(context.eval(std::vector<Token>{256}), InvalidArgument, "256");
  CHECK_THROWS(context.eval(std::vector<Token>{-1}), InvalidArgument, "-1");
  CHECK_THROWS(context.forward({{1, 5, 0, true}}), InvalidArgument, "position 5");
  CHECK_THROWS(context.forward({{1, 0, 1, true}}), InvalidArgument, "sequence 1");
  CHECK_THROWS(context.truncate(1), InvalidArgument, "truncate");
  CHECK_THROWS(Context(model, {.n_ctx = -1}), InvalidArgument, "n_ctx");
  CHECK_THROWS(Context(model, {.n_seqs = 0}), InvalidArgument, "n_seqs");
  CHECK_THROWS(Context(model, {.n_batch = 0}), InvalidArgument, "n_batch");
  CHECK_THROWS(Context(model, {.n_threads = -2}), InvalidArgument, "n_threads");
  CHECK_THROWS(Context(model, {.n_ctx = 1 << 24, .n_seqs = 60000}), OutOfMemoryError, "MiB");
  CHECK_THROWS(Context(model, {.threshold = {std::nanf("")}}), InvalidArgument, "NaN");
  CHECK_THROWS(Context(model, {.threshold = {0, 0, 0}}), InvalidArgument, "per layer");
  CHECK_THROWS(Context(model, {.sparsity = Sparsity::kThreshold}), UnsupportedError, "calibration");
  CHECK_THROWS(Model::load(file.path(), {.device = "cuda:0"}), DeviceError, "cuda:0");
  CHECK_THROWS(Model::load(file.path(), {.activation = "swish"}), UnsupportedError, "fatrelu");
  CHECK_THROWS(Model::load(file.path(), {.activation = "fatrelu"}), InvalidArgument, "cut");
  CHECK_THROWS(Model::load(file.path(), {.activation = "fatrelu:nan"}), InvalidArgument, "cut");
  CHECK_THROWS(parse_sparsity("sparse"), InvalidArgument, "predictor");
}

TEST(modes_a_model_cannot_do_say_why) {
  const tiny::ModelFile silu({.transposed_down = false, .predictors = false, .activation = ""});
  const auto model = Model::load(silu.path());
  CHECK_EQ(model->activation(), std::string("silu"));
  CHECK(model->activation_source().find("assumed") != std::string::npos);
  CHECK(model->default_sparsity() == Sparsity::kDense);
  CHECK_THROWS(Context(model, {.sparsity = Sparsity::kExact}), UnsupportedError, "no true zeros");
  CHECK_THROWS(Context(model, {.sparsity = Sparsity::kPredictor}), UnsupportedError, "no predictor");
  const auto relu = Model::load(silu.path(), {.activation = "relu"});
  CHECK(relu->default_sparsity() == Sparsity::kExact);
  CHECK_EQ(relu->activation_source(), std::string("override"));
}

TEST(a_second_thread_gets_an_error_not_a_race) {
  const tiny::ModelFile file({.n_layers = 8});
  Context context(Model::load(file.path()));
  std::atomic<bool> started{false};
  std::atomic<int> n_refused{0};
  class Starter : public TapSink {
   public:
    explicit Starter(std::atomic<bool>& flag) : flag_(flag) {}
    void on_tap(const TapEvent&) override {
      flag_.store(true);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }

   private:
    std::atomic<bool>& flag_;
  } starter(started);
  context.set_tap(TapPoint::kLayerInput, &starter);
  std::thread other([&] {
    while (!started.load()) std::this_thread::yield();
    try {
      context.eval(some_tokens(1));
    } catch (const StateError&) {
      ++n_refused;
    }
  });
  context.eval(some_tokens(16));
  other.join();
  CHECK_EQ(n_refused.load(), 1);
  CHECK_EQ(context.n_past(), 16);
}

TEST(cancel_from_another_thread_leaves_whole_passes) {
  const tiny::ModelFile file({.n_layers = 4});
  Context context(Model::load(file.path()), {.n_batch = 16});
  class Canceller : public TapSink {
   public:
    explicit Canceller(Context& target) : target_(target) {}
    void on_tap(const TapEvent& event) override {
      if (event.entries->position == 40 && event.layer == 1) std::thread([this] { target_.cancel(); }).join();
    }

   private:
    Context& target_;
  } canceller(context);
  context.set_tap(TapPoint::kResidual, &canceller);
  CHECK_THROWS(context.eval(some_tokens(64)), CancelledError, "last finished block");
  CHECK_EQ(context.n_past(), 32);
  context.set_tap(TapPoint::kResidual, nullptr);
  context.eval(some_tokens(4));
  CHECK_EQ(context.n_past(), 36);
  context.cancel();
  CHECK_THROWS(context.eval(some_tokens(1)), CancelledError, "cancelled");
  context.cancel();
  context.clear_cancel();
  context.eval(some_tokens(1));
  context.cancel();
  context.reset();
  context.eval(some_tokens(1));
  CHECK_EQ(context.n_past(), 1);
}

TEST(an_exception_from_a_tap_reaches_the_caller_and_changes_nothing) {
  const tiny::ModelFile file({});
  Context context(Model::load(file.path()));
  class Thrower : public TapSink {
   public:
    void on_tap(const TapEvent&) override { throw InvalidArgument("from the tap"); }
  } thrower;
  context.set_tap(TapPoint::kH, &thrower);
  CHECK_THROWS(context.eval(some_tokens(2)), InvalidArgument, "from the tap");
  CHECK_EQ(context.n_past(), 0);
  context.set_tap(TapPoint::kH, nullptr);
  context.eval(some_tokens(2));
  CHECK_EQ(context.n_past(), 2);
}

TEST(sizes_come_from_the_file) {
  const tiny::ModelFile file({.architecture = "opt", .n_ctx = 100});
  const auto model = Model::load(file.path());
  CHECK_EQ(model->n_ctx_train(), 100);
  CHECK_EQ(model->d_ff(), 512);
  CHECK_EQ(model->layers()[1].predictor_rank, 256);
  CHECK_THROWS(Context(model, {.n_ctx = 101}), InvalidArgument, "position table");
  CHECK_THROWS(model->tokenizer(), UnsupportedError, "no vocabulary");
}

TEST_MAIN()
