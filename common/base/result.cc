// SPDX-License-Identifier: Apache-2.0
#include "common/base/result.h"

#include <cerrno>
#include <cstring>

namespace borescope {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid: return "Invalid";
    case ErrorCode::kNotFound: return "NotFound";
    case ErrorCode::kConflict: return "Conflict";
    case ErrorCode::kGone: return "Gone";
    case ErrorCode::kDenied: return "Denied";
    case ErrorCode::kExhausted: return "Exhausted";
    case ErrorCode::kUnavailable: return "Unavailable";
    case ErrorCode::kUnsupported: return "Unsupported";
    case ErrorCode::kInternal: return "Internal";
  }
  return "Internal";
}

Error Error::WithContext(std::string_view context) const {
  return Error{code, std::string(context) + ": " + message};
}

std::string Error::ToString() const { return std::string(ErrorCodeName(code)) + ": " + message; }

Status Status::WithContext(std::string_view context) const {
  return ok() ? Status() : Status(error_->WithContext(context));
}

Error ErrnoError(std::string_view what, int error_number) {
  ErrorCode code = ErrorCode::kInternal;
  switch (error_number) {
    case EPERM:
    case EACCES: code = ErrorCode::kDenied; break;
    case ENOENT:
    case ESRCH: code = ErrorCode::kNotFound; break;
    case EINVAL: code = ErrorCode::kInvalid; break;
    case ENOSYS:
    case EOPNOTSUPP: code = ErrorCode::kUnsupported; break;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE: code = ErrorCode::kExhausted; break;
    case EAGAIN:
    case EBUSY:
    case EINTR:
    case ETIMEDOUT:
    case ECONNREFUSED:
    case ECONNRESET: code = ErrorCode::kUnavailable; break;
    default: break;
  }
  return Error{code, std::string(what) + ": " + std::strerror(error_number)};
}

Error ErrnoError(std::string_view what) { return ErrnoError(what, errno); }

}  // namespace borescope
