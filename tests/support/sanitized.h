// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace borescope::testing {

// Built with a sanitizer that needs terabytes of address space, and time.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace borescope::testing
