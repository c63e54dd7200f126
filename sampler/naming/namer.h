// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "sampler/naming/wire.h"
#include "sampler/symbols/byte_source.h"
#include "sampler/symbols/debug_info.h"
#include "sampler/symbols/elf_file.h"

namespace borescope::naming {

// What a file says of its debug files.
struct DebugLink {
  std::string name;  // base name
  uint32_t crc = 0;  // of the whole debug file
};
std::optional<DebugLink> ReadDebugLink(const symbols::ElfFile& elf);  // .gnu_debuglink
struct AltLink {
  std::string path, build_id;  // build_id: raw bytes
};
std::optional<AltLink> ReadAltLink(const symbols::ElfFile& elf);  // .gnu_debugaltlink

// Names of the addresses of one file, with its debug files. In the child.
class Namer {
 public:
  // The attempt-th file that is found, or null.
  using Opener = std::function<std::unique_ptr<symbols::ByteSource>(const Wanted& wanted)>;

  // kInvalid, kUnsupported: no ELF file that we read.
  static Result<std::unique_ptr<Namer>> Open(std::unique_ptr<symbols::ByteSource> file, Opener opener);

  // lines: with inlined functions and source lines; else the symbol only.
  AddressNames Find(uint64_t vaddr, bool lines);
  // Whether there is debug information, in the file or in others.
  bool has_debug() const { return has_debug_; }
  // Why there are no lines though there is debug information.
  const std::string& problem() const { return problem_.empty() && info_ ? info_->problem() : problem_; }
  size_t memory_bytes() const;

 private:
  explicit Namer(Opener opener) : opener_(std::move(opener)) {}
  void FindDebugFile();
  void OpenDebugInfo();
  std::unique_ptr<symbols::ElfFile> Want(Wanted wanted, const std::function<bool(const symbols::ElfFile&)>& matches);
  std::shared_ptr<symbols::ElfFile> Split(std::string_view name, std::string_view directory);
  std::optional<symbols::Symbol> FindSymbol(uint64_t vaddr);

  Opener opener_;
  std::unique_ptr<symbols::ElfFile> main_, debug_, alt_;
  bool has_debug_ = false, has_symbols_ = false;
  bool info_tried_ = false, package_tried_ = false;
  std::shared_ptr<symbols::ElfFile> package_;
  std::unique_ptr<symbols::DebugInfo> info_;  // uses the others
  std::string problem_;
};

}  // namespace borescope::naming
