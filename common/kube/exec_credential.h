// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace borescope::kube {

// What a credential plugin handed out. Empty parts: it gave none. Never logged, never part of a message.
struct ExecCredential {
  std::string token;
  std::string certificate, key;  // PEM
  int64_t expires_ns = 0;        // CLOCK_REALTIME; 0: it does not say
};

// The ExecCredential that a plugin printed. kInvalid: not one of `api_version`, or without a credential.
Result<ExecCredential> ParseExecCredential(std::string_view json, std::string_view api_version);

}  // namespace borescope::kube
