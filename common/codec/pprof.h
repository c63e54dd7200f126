// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/profile/profile.h"

namespace borescope::codec {

// What a decoder takes of bytes that somebody else wrote.
struct PprofLimits {
  size_t max_bytes = 4 << 20;  // uncompressed
  size_t max_samples = 16'000;
  size_t max_depth = 1'024;    // locations of a sample
  size_t max_table = 262'144;  // entries of each of the other tables
};

// One pprof message, not compressed. Lines without a function are left out. What is known of the weights (profile::EffectiveSamples) is a
// comment: "effective samples 9134.2, sum of squared weights 8.1e+17".
std::string EncodePprof(const profile::Profile& profile);
// The same as a .pb.gz file.
std::string EncodePprofGzip(const profile::Profile& profile);

// Gzip or plain. Numeric labels, drop_frames, keep_frames and doc_url are not part of the model and are left out.
// kInvalid: not a valid pprof; kExhausted: one of the limits, named with the value found.
Result<profile::Profile> DecodePprof(std::string_view bytes, const PprofLimits& limits = {});

// DecodePprof and Profile::Merge in one, without the tables in between. After an error *into may hold a part of it.
Status MergePprof(std::string_view bytes, profile::Profile* into, const PprofLimits& limits = {});

}  // namespace borescope::codec
