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

uint32_t Frames::AddFunction(FunctionName function) {
  std::string key = function.name + '\0' + function.system_name + '\0' + function.module + '\0' + function.file + '\0' + std::to_string(function.start_line);
  auto [it, added] = function_index_.try_emplace(std::move(key), static_cast<uint32_t>(functions_.size()));
  if (added) functions_.push_back(std::move(function));
  return it->second;
}

uint32_t Frames::Alone(std::string_view symbol, std::string_view module) {
  FunctionName function;
  function.name = symbols::DisplayName(symbol);
  function.system_name = SanitizeName(symbol, kMaxSystemName);
  function.module = module;
  const uint32_t index = AddFunction(std::move(function));
  if (functions_[index].alone == kNoName) {
    functions_[index].alone = static_cast<uint32_t>(known_.size());
    known_.emplace_back().lines = {{index, 0}};
    ++lines_;
  }
  return functions_[index].alone;
}

uint32_t Frames::OfFile(const Process& process, const std::shared_ptr<symbols::MappedFile>& file, uint64_t linked) {
  if (!names_) return kNoName;
  const Key key{reinterpret_cast<uint64_t>(file.get()), linked};
  auto [it, added] = name_index_.try_emplace(key, static_cast<uint32_t>(known_.size()));
  if (!added) return it->second;
  Name& name = known_.emplace_back();
  name.state = Name::State::kWaiting;
  name.file = file;
  name.linked = linked;
  ++pending_;
  names_->Ask(file, linked, [&] { return naming::Names::Origin{process.cgroup_id, spaces_.Roots(process)}; });
  return it->second;
}

std::vector<uint32_t> Frames::TakeNames() {
  std::vector<uint32_t> settled;
  if (!names_) return settled;
  for (naming::Names::Answer& answer : names_->Take()) {
    auto it = name_index_.find({reinterpret_cast<uint64_t>(answer.file.get()), answer.vaddr});
    if (it == name_index_.end()) continue;  // nobody has it any more
    Name& name = known_[it->second];
    if (name.state == Name::State::kDone) continue;
    const bool waited = name.state == Name::State::kWaiting;
    if (answer.names.start != 0 && answer.names.start <= name.linked) name.start = answer.names.start;
    if (!answer.names.lines.empty()) {
      lines_ += answer.names.lines.size() - name.lines.size();
      name.lines.clear();
      const std::string module = BaseName(name.file->path);
      for (naming::NamedLine& line : answer.names.lines) {
        FunctionName function;
        function.name = std::move(line.function);
        function.system_name = std::move(line.system_name);
        function.module = module;
        function.file = std::move(line.file);
        function.start_line = line.start_line;
        name.lines.push_back({AddFunction(std::move(function)), line.line});
      }
      name.state = Name::State::kPart;
    }
    if (answer.last) {
      name.state = Name::State::kDone;
      --pending_;
    }
    if (waited && name.state != Name::State::kWaiting) settled.push_back(it->second);
  }
  return settled;
}

uint32_t Frames::User(Process* process, uint64_t address, int64_t now_ns) {
  auto mapping = process ? spaces_.FindMapping(*process, address, now_ns) : nullptr;
  Key key{mapping ? mapping->id : process ? process->space->key : kNoScope, address};
  if (auto it = index_.find(key); it != index_.end()) return it->second;

  Frame frame;
  frame.mapping = mapping;
  frame.address = frame.linked = address;
  if (!mapping) return Add(key, std::move(frame));

  if (symbols::ElfFile* elf = mapping->elf()) {
    auto linked = elf->OffsetToVaddr(address - mapping->start + mapping->offset);
    if (!linked) return Add(key, std::move(frame));
    frame.linked = *linked;
    frame.name = OfFile(*process, mapping->file, *linked);
  } else if (auto found = spaces_.FindJit(*process, address, now_ns)) {
    const std::string symbol(found->name);
    if (auto* again = process->space->Find(address)) {  // reading on in the perf map gave the mapping a new id
      mapping = frame.mapping = *again;
      key.scope = mapping->id;
    }
    if (!symbol.empty()) frame.name = Alone(symbol, BaseName(mapping->path));
  }
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
  frame.name = Alone(name.empty() ? "[kernel]+?" : name, module.empty() ? "[kernel.kallsyms]" : module);
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
  frame.name = Alone(kTexts[reason < LOSS_MAX ? reason : LOSS_NONE], "");
  return Add(key, std::move(frame));
}

std::string Frames::Unnamed(const Frame& frame) const {
  char hex[24];
  std::snprintf(hex, sizeof(hex), "+0x%lx", frame.linked);
  return (frame.mapping ? BaseName(frame.mapping->path) : "[unknown]") + hex;
}

std::string Frames::Module(const Frame& frame) const { return frame.mapping ? BaseName(frame.mapping->path) : ""; }

Frames::Moved Frames::Sweep(const std::vector<bool>& used, std::span<const uint32_t> named_names) {
  Moved moved;
  moved.frames.assign(frames_.size(), UINT32_MAX);
  moved.names.assign(known_.size(), kNoName);
  std::vector<uint32_t> functions_moved(functions_.size(), UINT32_MAX);
  std::vector<Frame> frames;
  std::vector<Name> names;
  std::vector<FunctionName> functions;
  auto keep = [&](uint32_t name) {
    if (name == kNoName || moved.names[name] != kNoName) return;
    moved.names[name] = static_cast<uint32_t>(names.size());
    names.push_back(std::move(known_[name]));
  };
  for (uint32_t i = 0; i < frames_.size(); ++i) {
    if (!used[i]) continue;
    moved.frames[i] = static_cast<uint32_t>(frames.size());
    frames.push_back(std::move(frames_[i]));
    uint32_t& name = frames.back().name;
    keep(name);
    if (name != kNoName) name = moved.names[name];
  }
  for (uint32_t name : named_names) keep(name);
  pending_ = lines_ = 0;
  for (Name& name : names) {
    pending_ += name.state != Name::State::kDone;
    lines_ += name.lines.size();
    for (Line& line : name.lines) {
      uint32_t& to = functions_moved[line.function];
      if (to == UINT32_MAX) {
        to = static_cast<uint32_t>(functions.size());
        functions.push_back(std::move(functions_[line.function]));
        uint32_t& alone = functions.back().alone;
        if (alone != kNoName) alone = moved.names[alone];
      }
      line.function = to;
    }
  }
  std::erase_if(index_, [&](const auto& e) { return moved.frames[e.second] == UINT32_MAX; });
  for (auto& [key, index] : index_) index = moved.frames[index];
  std::erase_if(name_index_, [&](const auto& e) { return moved.names[e.second] == kNoName; });
  for (auto& [key, index] : name_index_) index = moved.names[index];
  std::erase_if(function_index_, [&](const auto& e) { return functions_moved[e.second] == UINT32_MAX; });
  for (auto& [key, index] : function_index_) index = functions_moved[index];
  frames_ = std::move(frames);
  known_ = std::move(names);
  functions_ = std::move(functions);
  return moved;
}

void Frames::Clear() {
  std::vector<Frame>().swap(frames_);
  index_ = {};
  std::vector<Name>().swap(known_);
  name_index_ = {};
  pending_ = lines_ = 0;
  std::vector<FunctionName>().swap(functions_);
  function_index_ = {};
  kallsyms_.reset();
  kallsyms_failed_ = false;
  if (names_) names_->Release();
}

size_t Frames::memory_bytes() const {
  constexpr size_t kNode = 48, kFunction = 500;  // a hash node; strings of a function and of its key
  return frames_.capacity() * sizeof(Frame) + (index_.size() + name_index_.size()) * kNode + functions_.size() * kFunction +
         known_.capacity() * sizeof(Name) + lines_ * sizeof(Line) +
         (kallsyms_ ? kallsyms_->memory_bytes() : 0);
}

}  // namespace borescope::stacks
