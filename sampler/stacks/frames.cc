// SPDX-License-Identifier: Apache-2.0
#include "sampler/stacks/frames.h"

#include <cstdio>

#include "common/base/log.h"
#include "common/base/strings.h"
#include "sampler/symbols/demangle.h"

namespace borescope::stacks {
namespace {

// Scopes that are not the id of a mapping or space.
constexpr uint64_t kKernelScope = UINT64_MAX, kCutScope = UINT64_MAX - 1, kNoScope = UINT64_MAX - 2;
constexpr int64_t kReloadNs = 60'000'000'000;
constexpr size_t kMaxSystemName = 1024;

std::string BaseName(std::string_view path) {
  if (path == "//anon" || path.empty()) return "[anonymous]";
  return std::string(path.substr(path.rfind('/') + 1));
}

}  // namespace

uint32_t Frames::Add(const Key& key, Frame frame) {
  uint32_t index = static_cast<uint32_t>(frames_.size());
  frames_.push_back(std::move(frame));
  index_.emplace(key, index);
  return index;
}

uint32_t Frames::AddFunction(std::string_view symbol, std::string_view module) {
  std::string key(symbol);
  key += '\0';
  key += module;
  auto [it, added] = function_index_.try_emplace(std::move(key), static_cast<uint32_t>(functions_.size()));
  if (added) functions_.push_back({symbols::DisplayName(symbol), SanitizeName(symbol, kMaxSystemName), std::string(module)});
  return it->second;
}

uint32_t Frames::User(Process* process, uint64_t address, int64_t now_ns) {
  auto mapping = process ? spaces_.FindMapping(*process, address, now_ns) : nullptr;
  Key key{mapping ? mapping->id : process ? process->space->key : kNoScope, address};
  if (auto it = index_.find(key); it != index_.end()) return it->second;

  Frame frame;
  frame.mapping = mapping;
  frame.address = frame.linked = address;
  if (!mapping) return Add(key, std::move(frame));

  std::string symbol;
  symbols::ElfFile* elf = mapping->elf();
  if (elf) {
    auto linked = elf->OffsetToVaddr(address - mapping->start + mapping->offset);
    if (!linked) return Add(key, std::move(frame));
    frame.linked = *linked;
    if (auto found = elf->FindSymbol(*linked)) symbol = std::move(found->name);
  } else if (auto found = spaces_.FindJit(*process, address, now_ns)) {
    symbol = found->name;
    if (auto* again = process->space->Find(address)) {  // reading on in the perf map gave the mapping a new id
      mapping = frame.mapping = *again;
      key.scope = mapping->id;
    }
  }
  if (!symbol.empty()) frame.function = AddFunction(symbol, BaseName(mapping->path));
  if (elf) spaces_.files().Touch(mapping->file);
  return Add(key, std::move(frame));
}

uint32_t Frames::Kernel(uint64_t pc, bool leaf, int64_t now_ns) {
  uint64_t address = leaf ? pc : pc - 1;
  Key key{kKernelScope, address};
  if (auto it = index_.find(key); it != index_.end()) return it->second;
  auto load = [&] {
    kallsyms_ns_ = now_ns;
    auto loaded = symbols::Kallsyms::Load(proc_root_);
    if (loaded.ok()) {
      kallsyms_ = *std::move(loaded);
    } else if (!kallsyms_failed_) {
      kallsyms_failed_ = true;
      Log(LogLevel::kWarning, kernel_names_ ? "kernel frames have no addresses" : "kernel frames have no names", {{"error", loaded.error().message}});
    }
  };
  if (!kallsyms_ && !kallsyms_failed_) load();
  std::string name, module;
  auto asked = kernel_names_ ? kernel_names_(address) : Error{ErrorCode::kUnsupported, ""};
  if (asked.ok()) {
    size_t space = asked->find(' ');
    name = asked->substr(0, space);
    if (space != std::string::npos) module = asked->substr(space + 1);
  } else {
    if (kernel_names_) {
      Log(LogLevel::kWarning, "the kernel does not name its functions; /proc/kallsyms is read", {{"error", asked.error().message}});
      kernel_names_ = nullptr;
    }
    auto found = kallsyms_ ? kallsyms_->Find(address) : std::nullopt;
    if (kallsyms_ && !found && now_ns - kallsyms_ns_ > kReloadNs) {  // a module or BPF program that is newer than our table
      load();
      found = kallsyms_->Find(address);
    }
    if (found) {
      name = found->name;
      if (!found->module.empty()) module = "[" + std::string(found->module) + "]";
    }
  }
  Frame frame;
  frame.kind = Frame::Kind::kKernel;
  // Tenants read profiles: where the kernel lies in memory is not theirs to know.
  if (!name.empty() && module.empty() && kallsyms_ && address >= kallsyms_->text_start()) frame.address = address - kallsyms_->text_start();
  frame.function = AddFunction(name.empty() ? "[kernel]+?" : name, module.empty() ? "[kernel.kallsyms]" : module);
  return Add(key, std::move(frame));
}

uint32_t Frames::Cut(borescope_loss reason) {
  static constexpr const char* kTexts[] = {
#define BORESCOPE_LOSS(enumerator, name, text, kind) "[truncated: " text "]",
      BORESCOPE_LOSS_TABLE(BORESCOPE_LOSS)
#undef BORESCOPE_LOSS
  };
  Key key{kCutScope, static_cast<uint64_t>(reason)};
  if (auto it = index_.find(key); it != index_.end()) return it->second;
  Frame frame;
  frame.kind = Frame::Kind::kCut;
  frame.function = AddFunction(kTexts[reason < LOSS_MAX ? reason : LOSS_NONE], "");
  return Add(key, std::move(frame));
}

std::string Frames::Text(const Frame& frame) const {
  if (frame.function != kNoFunction) return functions_[frame.function].name;
  char hex[24];
  std::snprintf(hex, sizeof(hex), "+0x%lx", frame.linked);
  return (frame.mapping ? BaseName(frame.mapping->path) : "[unknown]") + hex;
}

std::string Frames::Module(const Frame& frame) const {
  if (frame.function != kNoFunction) return functions_[frame.function].module;
  return frame.mapping ? BaseName(frame.mapping->path) : "";
}

std::vector<uint32_t> Frames::Sweep(const std::vector<bool>& used) {
  std::vector<uint32_t> moved(frames_.size(), UINT32_MAX);
  std::vector<Frame> frames;
  std::vector<FunctionName> functions;
  std::vector<uint32_t> functions_moved(functions_.size(), kNoFunction);
  for (uint32_t i = 0; i < frames_.size(); ++i) {
    if (!used[i]) continue;
    moved[i] = static_cast<uint32_t>(frames.size());
    frames.push_back(std::move(frames_[i]));
    uint32_t& function = frames.back().function;
    if (function == kNoFunction) continue;
    if (functions_moved[function] == kNoFunction) {
      functions_moved[function] = static_cast<uint32_t>(functions.size());
      functions.push_back(std::move(functions_[function]));
    }
    function = functions_moved[function];
  }
  std::erase_if(index_, [&](const auto& e) { return moved[e.second] == UINT32_MAX; });
  for (auto& [key, index] : index_) index = moved[index];
  std::erase_if(function_index_, [&](const auto& e) { return functions_moved[e.second] == kNoFunction; });
  for (auto& [key, index] : function_index_) index = functions_moved[index];
  frames_ = std::move(frames);
  functions_ = std::move(functions);
  return moved;
}

void Frames::Clear() {
  std::vector<Frame>().swap(frames_);
  index_ = {};
  std::vector<FunctionName>().swap(functions_);
  function_index_ = {};
  kallsyms_.reset();
  kallsyms_failed_ = false;
}

size_t Frames::memory_bytes() const {
  constexpr size_t kNode = 48, kFunction = 400;  // a hash node; strings of a function and of its key
  return frames_.capacity() * sizeof(Frame) + index_.size() * kNode + functions_.size() * kFunction +
         (kallsyms_ ? kallsyms_->memory_bytes() : 0);
}

}  // namespace borescope::stacks
