// Writes text with the public C++ API alone: cpp_consumer -m MODEL -p PROMPT [-n N] [-t THREADS]
#include <cstdlib>
#include <iostream>
#include <string>

#include "powerinfer/error.h"
#include "powerinfer/generate.h"

namespace {

struct Arguments {
  std::string model;
  std::string prompt;
  int n_tokens = 64;
  int n_threads = 0;  // 0: the physical cores this process may use
};

int to_number(const std::string& flag, const std::string& text) {
  std::size_t used = 0;
  int number = 0;
  try {
    number = std::stoi(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size()) throw powerinfer::InvalidArgument(flag + " '" + text + "' is no number");
  return number;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) throw powerinfer::InvalidArgument(flag + " needs a value");
    const std::string value = argv[i + 1];
    if (flag == "-m") {
      arguments.model = value;
    } else if (flag == "-p") {
      arguments.prompt = value;
    } else if (flag == "-n") {
      arguments.n_tokens = to_number(flag, value);
    } else if (flag == "-t") {
      arguments.n_threads = to_number(flag, value);
    } else {
      throw powerinfer::InvalidArgument("unknown flag " + flag);
    }
  }
  if (arguments.model.empty()) throw powerinfer::InvalidArgument("there is no model; give one with -m");
  return arguments;
}

void write_text(const Arguments& arguments) {
  const auto model = powerinfer::Model::load(arguments.model, {.n_threads = arguments.n_threads});
  powerinfer::Context context(model);
  powerinfer::Sampler sampler;
  powerinfer::Generator generator(context, sampler, model->tokenizer().encode(arguments.prompt),
                                  {.max_tokens = arguments.n_tokens});
  std::cout << arguments.prompt;
  while (const auto piece = generator.next()) std::cout << piece->text << std::flush;
  std::cout << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    write_text(parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
