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
#include "sampler/unwind/content.h"

namespace borescope::unwind {

// Compiled tables on disk, one file each: those of an earlier run need not be compiled again. What stands there is not believed.
class DiskCache {
 public:
  static constexpr uint64_t kMaxBytes = 512 << 20;

  // Makes the directory (0700, those above it 0755) when it is missing. kDenied: others may write to it.
  static Result<std::unique_ptr<DiskCache>> Open(const std::string& directory, uint64_t max_bytes = kMaxBytes);

  // What is known of a file's table: the table, else why there is none, else (both empty) that the file tells nothing.
  struct Kept {
    std::optional<CompiledTable> table;
    std::string problem;
  };
  // What is kept under a name (a file name). kNotFound: nothing, or a problem of more than a day ago; kInvalid: it is damaged, and gone now.
  Result<Kept> Load(const std::string& name);
  // `serialized`: what Serialize gave, empty: the file tells nothing. The longest unused make room.
  Status Store(const std::string& name, std::string_view serialized);
  Status StoreProblem(const std::string& name, std::string_view problem);

  // By it, names of contents are made: of this directory only, and nobody else knows it.
  const HashKey& key() const { return key_; }

 private:
  DiskCache(UniqueFd directory, uint64_t max_bytes) : directory_(std::move(directory)), max_bytes_(max_bytes) {}
  Status OpenKey();
  std::optional<HashKey> ReadKey();
  Status Write(const std::string& name, uint64_t kind, std::string_view bytes);
  // A new file beside that one, only for us; it gets the name when all is in it.
  Result<UniqueFd> Create(std::string* temporary);
  void Shrink();

  UniqueFd directory_;
  uint64_t max_bytes_, bytes_ = 0;
  HashKey key_{};
};

}  // namespace borescope::unwind
