// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/debug_info.h"

namespace borescope::symbols {

Result<std::unique_ptr<DebugInfo>> DebugInfo::Open(DebugFiles, DebugLimits) {
  return Error{ErrorCode::kNotFound, "no debug information"};
}

}  // namespace borescope::symbols
