// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "sampler/unwind/compiled_table.h"

namespace borescope::unwind {

// Compiled tables on disk, one file each: those of an earlier run need not be compiled again. What stands there is not believed.
class DiskCache {
 public:
  static constexpr uint64_t kMaxBytes = 512 << 20;

  // Makes the directory (0700, those above it 0755) when it is missing. kDenied: others may write to it.
  static Result<std::unique_ptr<DiskCache>> Open(const std::string& directory, uint64_t max_bytes = kMaxBytes);

  // The table kept under a name (a file name); empty optional: it is known that the file tells nothing. kNotFound: nothing is kept;
  // kInvalid: what was kept is damaged, it is gone now.
  Result<std::optional<CompiledTable>> Load(const std::string& name);
  // `serialized`: what Serialize gave, empty: the file tells nothing. The longest unused make room.
  Status Store(const std::string& name, std::string_view serialized);

 private:
  DiskCache(UniqueFd directory, uint64_t max_bytes) : directory_(std::move(directory)), max_bytes_(max_bytes) {}
  void Shrink();

  UniqueFd directory_;
  uint64_t max_bytes_, bytes_ = 0;
};

}  // namespace borescope::unwind
