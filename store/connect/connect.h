// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "common/base/result.h"
#include "common/http/message.h"

namespace borescope::store {

// Errors as the Connect protocol writes them, on every route: {"code": "...", "message": "..."} with the HTTP status of the code.
http::Response ConnectError(const Error& error);
// The same for what is refused by HTTP status (413, 415, 405 ...), which stays.
http::Response ConnectRefusal(int status, std::string_view message);

// How the body of a POST is written, by its Content-Type; the answer is written the same way.
enum class Encoding { kProto, kJson };
std::optional<Encoding> EncodingOf(const http::Request& request);
std::string_view ContentTypeOf(Encoding encoding);
// The 415 for another one; `accepted` is what would be taken.
http::Response WrongContentType(const http::Request& request, std::string_view accepted);

}  // namespace borescope::store
