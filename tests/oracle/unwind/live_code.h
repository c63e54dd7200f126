// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/uio.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/strings.h"
#include "sampler/symbols/elf_file.h"
#include "sampler/symbols/proc_maps.h"
#include "sampler/unwind/compile.h"
#include "sampler/unwind/recorded.h"

namespace borescope::oracle {

// The code of a process that we trace, with tables compiled here and now.
class LiveCode : public unwind::CodeMap {
 public:
  explicit LiveCode(pid_t pid) : pid_(pid) { ReadMappings(); }

  void ReadMappings() {
    if (auto text = ReadFile("/proc/" + std::to_string(pid_) + "/maps"); text.ok()) lines_ = symbols::ParseMaps(*text, 100'000);
  }

  unwind::CodePlace Find(uint64_t pc) override {
    const symbols::MapsLine* line = Line(pc);
    if (line == nullptr) return {};
    if (line->path == "[uprobes]") return {.kind = unwind::CodePlace::Kind::kProbe};
    if (line->path.empty() || line->path == "[vsyscall]") return {.kind = unwind::CodePlace::Kind::kAnonymous};
    return {.kind = unwind::CodePlace::Kind::kFile, .file_offset = pc - line->start + line->offset, .table = Table(*line)};
  }

  bool ReadCode(uint64_t address, void* into, size_t n) override { return Read(address, into, n); }

  bool Read(uint64_t address, void* into, size_t n) const {
    iovec local{into, n}, remote{reinterpret_cast<void*>(address), n};
    return process_vm_readv(pid_, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(n);
  }

  const symbols::MapsLine* Line(uint64_t pc) const {
    for (const auto& line : lines_) {
      if (pc >= line.start && pc < line.end) return &line;
    }
    return nullptr;
  }
  const std::vector<symbols::MapsLine>& lines() const { return lines_; }
  const std::map<std::string, std::string>& problems() const { return problems_; }

 private:
  const unwind::CompiledTable* Table(const symbols::MapsLine& line) {
    auto [it, fresh] = tables_.try_emplace(line.path);
    if (!fresh) return it->second.get();
    std::unique_ptr<symbols::ByteSource> source;
    if (line.path == "[vdso]") {
      std::string bytes(line.end - line.start, '\0');
      if (!Read(line.start, bytes.data(), bytes.size())) return nullptr;
      source = symbols::MemorySource(std::move(bytes));
    } else {
      auto opened = symbols::OpenSource(UniqueFd(open(line.path.c_str(), O_RDONLY | O_CLOEXEC)));
      if (!opened.ok()) {
        problems_[line.path] = opened.error().message;
        return nullptr;
      }
      source = *std::move(opened);
    }
    auto elf = symbols::ElfFile::Parse(std::move(source));
    if (!elf.ok()) {
      problems_[line.path] = elf.error().message;
      return nullptr;
    }
    auto table = unwind::Compile(**elf, nullptr);
    if (!table.ok()) {
      problems_[line.path] = table.error().message;
      return nullptr;
    }
    it->second = std::make_unique<unwind::CompiledTable>(*std::move(table));
    return it->second.get();
  }

  pid_t pid_;
  std::vector<symbols::MapsLine> lines_;
  std::map<std::string, std::unique_ptr<unwind::CompiledTable>> tables_;
  std::map<std::string, std::string> problems_;  // by path: why there is no table
};

}  // namespace borescope::oracle
