// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace borescope {

// What the caller should do, not where it went wrong; the message grows context on its way up.
enum class ErrorCode {
  kInvalid,      // the input is wrong: do not retry, tell the user
  kNotFound,     // it does not exist (404, ENOENT)
  kConflict,     // somebody else wrote first: read again, decide again (409)
  kGone,         // the position is too old: list again (410)
  kDenied,       // not permitted (401, 403, EPERM, EACCES)
  kExhausted,    // a limit or quota is reached: retry later or ask for less (429, ENOSPC)
  kUnavailable,  // the other side does not answer just now: retry (5xx, ECONNREFUSED, time-out)
  kUnsupported,  // this build, kernel or server cannot do that
  kInternal,     // a broken assumption of ours
};

std::string_view ErrorCodeName(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // thing, value found, next step

  // "context: message", same code.
  Error WithContext(std::string_view context) const;
  // "Invalid: message"
  std::string ToString() const;
};

// `what` plus the text of errno; the code follows from errno (EPERM -> kDenied ...).
Error ErrnoError(std::string_view what, int error_number);
Error ErrnoError(std::string_view what);

// Success, or an Error. Cheap to return; must be looked at.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose
  bool ok() const { return !error_.has_value(); }
  const Error& error() const { return *error_; }
  Status WithContext(std::string_view context) const;

 private:
  std::optional<Error> error_;
};

inline Status OkStatus() { return {}; }

// A T, or an Error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT: implicit on purpose
  Result(Error error) : value_(std::move(error)) {}  // NOLINT: implicit on purpose
  bool ok() const { return std::holds_alternative<T>(value_); }
  const Error& error() const { return std::get<Error>(value_); }
  T& operator*() & { return std::get<T>(value_); }
  const T& operator*() const& { return std::get<T>(value_); }
  T&& operator*() && { return std::get<T>(std::move(value_)); }
  T* operator->() { return &std::get<T>(value_); }
  const T* operator->() const { return &std::get<T>(value_); }
  Status status() const { return ok() ? Status() : Status(error()); }

 private:
  std::variant<T, Error> value_;
};

inline const Error& GetError(const Status& s) { return s.error(); }
template <typename T>
const Error& GetError(const Result<T>& r) {
  return r.error();
}

}  // namespace borescope

#define BORESCOPE_CONCAT_INNER(a, b) a##b
#define BORESCOPE_CONCAT(a, b) BORESCOPE_CONCAT_INNER(a, b)

// RETURN_IF_ERROR(expr): returns the error of a Status or Result from the enclosing function.
#define RETURN_IF_ERROR(expr)                                          \
  do {                                                                 \
    if (auto&& status_or_error_ = (expr); !status_or_error_.ok()) {    \
      return ::borescope::Error(::borescope::GetError(status_or_error_)); \
    }                                                                  \
  } while (false)

// ASSIGN_OR_RETURN(auto x, expr): x = *expr, or returns its error.
#define ASSIGN_OR_RETURN(lhs, expr) ASSIGN_OR_RETURN_IMPL(BORESCOPE_CONCAT(result_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr)                 \
  auto tmp = (expr);                                          \
  if (!tmp.ok()) return ::borescope::Error(tmp.error());      \
  lhs = *std::move(tmp)
