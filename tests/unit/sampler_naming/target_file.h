// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "sampler/symbols/files.h"

namespace borescope::naming {

inline UniqueFd OpenRead(const std::string& path) { return UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC)); }

// The file as the sampler has it; the test fails when it can't be had.
inline std::shared_ptr<symbols::MappedFile> Map(const std::string& path) {
  auto file = std::make_shared<symbols::MappedFile>();
  file->path = path;
  auto source = symbols::OpenSource(OpenRead(path));
  EXPECT_TRUE(source.ok()) << path;
  auto elf = symbols::ElfFile::Parse(*std::move(source));
  EXPECT_TRUE(elf.ok()) << path;
  file->elf = *std::move(elf);
  file->build_id = file->elf->build_id();
  file->opened = true;
  return file;
}

// [start, end) of a function of TEST_TARGET, by the name in its symbol table.
inline std::pair<uint64_t, uint64_t> RangeOf(const std::string& function) {
  auto file = Map(TEST_TARGET);
  for (uint64_t start : file->elf->FunctionStarts(0, UINT64_MAX)) {
    auto symbol = file->elf->FindSymbol(start);
    if (symbol && symbol->name == function) return {symbol->start, symbol->end};
  }
  ADD_FAILURE() << function << " is not in " << TEST_TARGET;
  return {0, 0};
}

}  // namespace borescope::naming
