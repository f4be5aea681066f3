// Typed errors of the library. Every failure a caller can cause or meet arrives as one of these; messages say
// what failed, where, what was expected, what was found, and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace powerinfer {

/// Base of all errors thrown by the library.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A file is truncated, corrupt or contradicts itself.
class FormatError : public Error {
 public:
  using Error::Error;
};

/// Well-formed, but not something this build can compute (type, architecture, tokenizer, mode).
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

/// An argument is out of range or makes no sense.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// Memory that was asked for is not there. Nothing has been allocated when this is thrown.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

/// A compute device failed or is not to be had.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// The object cannot do this in its present state (context full, in use by another thread, closed).
/// The state is unchanged.
class StateError : public Error {
 public:
  using Error::Error;
};

/// The call was ended by `cancel()`. The context stands at the last finished block.
class CancelledError : public Error {
 public:
  using Error::Error;
};

}  // namespace powerinfer
