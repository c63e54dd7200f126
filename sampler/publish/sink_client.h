// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/http/client.h"
#include "sampler/publish/sinks.h"

namespace borescope::publish {

// A client of the sink. Its files are read at each request (token) and connection (roots), so that rotated ones count at once.
Result<std::unique_ptr<http::Client>> MakeSinkClient(const Sink& sink, std::chrono::milliseconds connect_timeout);

// The bearer token of the sink as its file holds it now; "" when it has none.
Result<std::string> ReadSinkToken(const Sink& sink);

}  // namespace borescope::publish
