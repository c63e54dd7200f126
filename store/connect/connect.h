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

// The 415 for a body that is not application/proto, or nothing.
std::optional<http::Response> RequireProto(const http::Request& request);

}  // namespace borescope::store
