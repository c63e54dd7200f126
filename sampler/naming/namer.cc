// SPDX-License-Identifier: Apache-2.0
#include "sampler/naming/namer.h"

#include <elf.h>
#include <zlib.h>

#include <algorithm>
#include <utility>

#include "common/base/strings.h"
#include "sampler/symbols/demangle.h"
#include "sampler/symbols/eh_frame.h"

namespace borescope::naming {
namespace {

constexpr size_t kMaxAttempts = 4;  // files that stand where a debug file should, and are others
constexpr uint64_t kMaxLink = kMaxPath + 128;

bool HasDebugInfo(const symbols::ElfFile& elf) {
  return elf.FindSection(".debug_info") || elf.FindSection(".zdebug_info") || elf.FindSection(".debug_line");
}

bool HasSymbolTable(const symbols::ElfFile& elf) {
  return std::any_of(elf.sections().begin(), elf.sections().end(), [](const auto& s) { return s.type == SHT_SYMTAB; });
}

uint32_t Crc(const symbols::ByteSource& source) {
  std::string block(64 << 10, '\0');
  uLong crc = ::crc32(0, nullptr, 0);
  for (uint64_t at = 0; at < source.size(); at += block.size()) {
    const size_t n = std::min<uint64_t>(block.size(), source.size() - at);
    if (!source.Read(at, block.data(), n)) return 0;
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(block.data()), static_cast<uInt>(n));
  }
  return static_cast<uint32_t>(crc);
}

// The bytes of a section that holds a link.
std::string ReadLink(const symbols::ElfFile& elf, std::string_view section) {
  const auto* s = elf.FindSection(section);
  if (!s || s->type == SHT_NOBITS || s->size > kMaxLink) return "";
  std::string bytes(s->size, '\0');
  return elf.source().Read(s->offset, bytes.data(), bytes.size()) ? bytes : "";
}

std::string Tail(const std::string& name, size_t max_bytes) { return name.size() <= max_bytes ? name : name.substr(name.size() - max_bytes); }

NamedLine LineOf(const std::string& system_name) {
  NamedLine line;
  line.function = symbols::DisplayName(system_name);
  line.system_name = SanitizeName(system_name, kMaxSystemName);
  return line;
}

}  // namespace

std::optional<DebugLink> ReadDebugLink(const symbols::ElfFile& elf) {
  const std::string bytes = ReadLink(elf, ".gnu_debuglink");
  DebugLink link;
  link.name = bytes.substr(0, bytes.find('\0'));
  const size_t at = (link.name.size() + 1 + 3) / 4 * 4;
  if (link.name.empty() || link.name == "." || link.name == ".." || link.name.find('/') != std::string::npos || bytes.size() < at + sizeof(link.crc)) {
    return std::nullopt;
  }
  bytes.copy(reinterpret_cast<char*>(&link.crc), sizeof(link.crc), at);
  return link;
}

std::optional<AltLink> ReadAltLink(const symbols::ElfFile& elf) {
  const std::string bytes = ReadLink(elf, ".gnu_debugaltlink");
  const size_t end = bytes.find('\0');
  if (end == std::string::npos || end == 0 || bytes.size() - end - 1 < 4 || bytes.size() - end - 1 > 64) return std::nullopt;
  return AltLink{bytes.substr(0, end), bytes.substr(end + 1)};
}

Result<std::unique_ptr<Namer>> Namer::Open(std::unique_ptr<symbols::ByteSource> file, Opener opener) {
  std::unique_ptr<Namer> namer(new Namer(std::move(opener)));
  ASSIGN_OR_RETURN(namer->main_, symbols::ElfFile::Parse(std::move(file)));
  namer->FindDebugFile();
  return namer;
}

std::unique_ptr<symbols::ElfFile> Namer::Want(Wanted wanted, const std::function<bool(const symbols::ElfFile&)>& matches) {
  for (size_t attempt = 0; attempt < kMaxAttempts; ++attempt) {
    wanted.attempt = static_cast<uint8_t>(attempt);
    auto source = opener_(wanted);
    if (!source) return nullptr;
    auto elf = symbols::ElfFile::Parse(std::move(source));
    if (elf.ok() && matches(**elf)) return *std::move(elf);
  }
  return nullptr;
}

void Namer::FindDebugFile() {
  const std::string& id = main_->build_id();
  const bool whole = HasDebugInfo(*main_) && HasSymbolTable(*main_);
  auto has_id = [&](const symbols::ElfFile& elf) { return elf.build_id() == id; };
  if (!whole && !id.empty()) debug_ = Want({.kind = Wanted::kBuildId, .attempt = 0, .name = "", .directory = "", .build_id = id}, has_id);
  if (!whole && !debug_) {
    if (auto link = ReadDebugLink(*main_)) {
      debug_ = Want({.kind = Wanted::kDebugLink, .attempt = 0, .name = link->name, .directory = "", .build_id = ""}, [&](const symbols::ElfFile& elf) {
        return !id.empty() && !elf.build_id().empty() ? elf.build_id() == id : Crc(elf.source()) == link->crc;
      });
    }
  }
  has_symbols_ = HasSymbolTable(*main_) || main_->FindSection(".dynsym") || main_->FindSection(".gnu_debugdata") || main_->go_table() ||
                 (debug_ && HasSymbolTable(*debug_));
  has_debug_ = HasDebugInfo(*main_) || (debug_ && HasDebugInfo(*debug_));
}

void Namer::OpenDebugInfo() {
  info_tried_ = true;
  auto link = ReadAltLink(*main_);
  if (!link && debug_) link = ReadAltLink(*debug_);
  if (link) {
    alt_ = Want({.kind = Wanted::kAltLink, .attempt = 0, .name = link->path, .directory = "", .build_id = link->build_id},
                [&](const symbols::ElfFile& elf) { return elf.build_id() == link->build_id; });
    if (!alt_) problem_ = "its supplementary debug file " + SanitizeName(link->path, kMaxProblem / 2) + " is not there";
  }
  symbols::DebugFiles files;
  files.main = main_.get();
  files.debug = debug_.get();
  files.alt = alt_.get();
  files.split = [this](std::string_view name, std::string_view directory, uint64_t) { return Split(name, directory); };
  auto info = symbols::DebugInfo::Open(std::move(files));
  if (info.ok()) {
    info_ = *std::move(info);
  } else {
    has_debug_ = info.error().code != ErrorCode::kNotFound;
    if (has_debug_) problem_ = info.error().message;
  }
}

std::shared_ptr<symbols::ElfFile> Namer::Split(std::string_view name, std::string_view directory) {
  auto any = [](const symbols::ElfFile&) { return true; };  // whose they are is told by the unit's id, which DebugInfo compares
  if (!std::exchange(package_tried_, true)) package_ = Want({.kind = Wanted::kPackage, .attempt = 0, .name = "", .directory = "", .build_id = ""}, any);
  if (package_) return package_;
  if (name.empty() || name.size() > kMaxPath || directory.size() > kMaxPath) return nullptr;
  return Want({.kind = Wanted::kSplit, .attempt = 0, .name = std::string(name), .directory = std::string(directory), .build_id = ""}, any);
}

std::optional<symbols::Symbol> Namer::FindSymbol(uint64_t vaddr) {
  // A table that was stripped knows less than the one that was put aside.
  if (debug_ && !HasSymbolTable(*main_)) {
    if (auto found = debug_->FindSymbol(vaddr)) return found;
  }
  if (auto found = main_->FindSymbol(vaddr)) return found;
  return debug_ ? debug_->FindSymbol(vaddr) : std::nullopt;
}

AddressNames Namer::Find(uint64_t vaddr, bool lines) {
  AddressNames names;
  const std::optional<symbols::Symbol> symbol = FindSymbol(vaddr);
  if (lines && has_debug_ && !info_tried_) OpenDebugInfo();
  if (lines && info_) {
    auto frames = info_->Find(vaddr);
    if (!frames.ok()) {
      problem_ = frames.error().message;
      names.outcome = Outcome::kLinesFailed;
    } else {
      for (size_t i = 0; i < frames->size(); ++i) {
        const symbols::SourceFrame& frame = (*frames)[i];
        // The function that is really there is called as its symbol: of a function that has several names, the one that people know.
        const bool outermost = i + 1 == frames->size();
        if (outermost && !symbol && frame.function.empty()) {
          names.lines.clear();
          break;
        }
        NamedLine line = LineOf(outermost && symbol ? symbol->name : frame.function.empty() ? "[inlined]" : frame.function);
        line.file = SanitizeName(Tail(frame.file, kMaxPath), kMaxPath);
        line.line = frame.line;
        line.start_line = frame.start_line;
        names.lines.push_back(std::move(line));
      }
      if (names.lines.size() > kMaxInlined) names.lines.erase(names.lines.begin(), names.lines.end() - kMaxInlined);
      if (!names.lines.empty()) {
        names.outcome = Outcome::kLine;
        return names;
      }
    }
  }
  if (symbol) {
    names.lines = {LineOf(symbol->name)};
    if (names.outcome != Outcome::kLinesFailed) names.outcome = lines && has_debug_ && !info_ ? Outcome::kLinesFailed : Outcome::kSymbol;
  } else {
    names.outcome = has_symbols_ || info_ ? Outcome::kGap : Outcome::kStripped;
    if (const symbols::EhFrame* functions = main_->eh_frame()) {
      if (auto function = functions->Find(vaddr)) names.start = function->start;
    }
  }
  return names;
}

size_t Namer::memory_bytes() const {
  size_t bytes = main_->memory_bytes();
  if (debug_) bytes += debug_->memory_bytes();
  if (alt_) bytes += alt_->memory_bytes();
  if (package_) bytes += package_->memory_bytes();
  if (info_) bytes += info_->memory_bytes();
  return bytes;
}

}  // namespace borescope::naming
