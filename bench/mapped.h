// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/fd.h"
#include "sampler/symbols/files.h"

namespace borescope::bench {

// The file as it is found through a mapping of it, which stays; null: it can't be mapped.
inline std::shared_ptr<symbols::MappedFile> Map(symbols::FileCache& cache, const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat st{};
  if (!fd.valid() || ::fstat(fd.get(), &st) != 0) return nullptr;
  constexpr size_t kPage = 4096;
  void* at = ::mmap(nullptr, kPage, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd.get(), 0);
  if (at == MAP_FAILED) return nullptr;
  auto start = reinterpret_cast<uint64_t>(at);
  return cache.Get({.pid = ::getpid(), .relatives = {}, .start = start, .end = start + kPage, .id = {major(st.st_dev), minor(st.st_dev), st.st_ino}, .path = path, .build_id = {}});
}

}  // namespace borescope::bench
