// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "bpf/abi/loss.h"
#include "common/base/result.h"
#include "sampler/naming/names.h"
#include "sampler/stacks/spaces.h"
#include "sampler/symbols/kallsyms.h"

namespace borescope::stacks {

constexpr uint32_t kNoName = UINT32_MAX;

using KernelNames = std::function<Result<std::string>(uint64_t)>;  // see Options::kernel_names

struct FunctionName {
  std::string name, system_name;
  std::string module;  // base name of the mapping, "[kernel.kallsyms]", "[nf_tables]"
  std::string file;    // source file, or empty
  uint32_t start_line = 0;
  uint32_t alone = kNoName;  // the name that is this function and no line
};

struct Line {
  uint32_t function = 0, line = 0;
};

// What is known of an address, shared by all processes that map its file.
struct Name {
  enum class State : uint8_t {
    kWaiting,  // for its first answer, or for one that has a name
    kPart,     // there is a symbol, lines may come
    kDone,
  };
  State state = State::kDone;
  std::vector<Line> lines;                    // innermost (inlined) first; empty: no name
  std::shared_ptr<symbols::MappedFile> file;  // null: was named at once
  uint64_t linked = 0;
  uint64_t start = 0;  // without a name: where its function begins, as linked; 0: unknown
};

// One program counter of one mapping.
struct Frame {
  enum class Kind : uint8_t { kUser, kKernel, kCut };
  Kind kind = Kind::kUser;
  std::shared_ptr<const Mapping> mapping;  // kUser; null: in no mapping that we know
  uint64_t address = 0;                    // kUser: the instruction, for callers one byte before the return address. kKernel: from _stext
  uint64_t linked = 0;                     // address in the file
  uint32_t name = kNoName;
};

// Names of program counters, by mapping. Those of files are asked for and come later; nothing is read here.
class Frames {
 public:
  // names: null: files give none.
  Frames(Spaces& spaces, std::string proc_root, KernelNames kernel_names, naming::Names* names)
      : spaces_(spaces), proc_root_(std::move(proc_root)), kernel_names_(std::move(kernel_names)), names_(names) {}

  // Indices stay valid until Sweep.
  // The instruction at `address`: an interrupted one, or a byte of the call before a return address. process null: none is known.
  uint32_t User(Process* process, uint64_t address, int64_t now_ns);
  uint32_t Kernel(uint64_t pc, bool leaf, int64_t now_ns);
  uint32_t Cut(borescope_loss reason);

  const Frame& operator[](uint32_t index) const { return frames_[index]; }
  const FunctionName& function(uint32_t index) const { return functions_[index]; }
  std::span<const Line> lines(uint32_t name) const { return name == kNoName ? std::span<const Line>() : std::span<const Line>(known_[name].lines); }
  // How far within its function the address of a frame without a name lies; nothing: unknown.
  std::optional<uint64_t> Within(const Frame& frame) const {
    if (frame.name == kNoName || !known_[frame.name].lines.empty() || known_[frame.name].start == 0) return std::nullopt;
    return frame.linked - known_[frame.name].start;
  }
  Name::State state(uint32_t name) const { return name == kNoName ? Name::State::kDone : known_[name].state; }
  bool pending(const Frame& frame) const { return state(frame.name) != Name::State::kDone; }
  size_t pending() const { return pending_; }  // names
  // Takes the answers that have come: the names that are no longer kWaiting.
  std::vector<uint32_t> TakeNames();

  // What people read of a frame without name: "app+0x1234".
  std::string Unnamed(const Frame& frame) const;
  std::string Module(const Frame& frame) const;
  size_t size() const { return frames_.size(); }

  // Drops the frames that are not used, and the names that neither they nor named_names have. The new index of each old one.
  struct Moved {
    std::vector<uint32_t> frames, names;
  };
  Moved Sweep(const std::vector<bool>& used, std::span<const uint32_t> named_names);
  void Clear();
  size_t memory_bytes() const;

 private:
  struct Key {
    uint64_t scope, address;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& k) const {
      uint64_t x = (k.scope * 0x9e3779b97f4a7c15u) ^ (k.address * 0xc2b2ae3d27d4eb4fu);
      return x ^ (x >> 31);
    }
  };

  uint32_t Add(const Key& key, Frame frame);
  uint32_t AddFunction(FunctionName function);
  // The name that is one function, with nothing known of its lines.
  uint32_t Alone(std::string_view symbol, std::string_view module);
  uint32_t OfFile(const Process& process, const std::shared_ptr<symbols::MappedFile>& file, uint64_t linked);

  Spaces& spaces_;
  std::string proc_root_;
  KernelNames kernel_names_;
  naming::Names* names_;
  std::vector<Frame> frames_;
  std::unordered_map<Key, uint32_t, KeyHash> index_;
  std::vector<Name> known_;
  std::unordered_map<Key, uint32_t, KeyHash> name_index_;  // by file and linked address
  size_t pending_ = 0, lines_ = 0;
  std::vector<FunctionName> functions_;
  std::unordered_map<std::string, uint32_t> function_index_;  // by all of it
  std::optional<symbols::Kallsyms> kallsyms_;
  bool kallsyms_failed_ = false;
  int64_t kallsyms_ns_ = 0;
};

}  // namespace borescope::stacks
