// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bpf/abi/loss.h"
#include "common/base/result.h"
#include "sampler/stacks/spaces.h"
#include "sampler/symbols/kallsyms.h"

namespace borescope::stacks {

constexpr uint32_t kNoFunction = UINT32_MAX;

using KernelNames = std::function<Result<std::string>(uint64_t)>;  // see Options::kernel_names

struct FunctionName {
  std::string name, system_name;
  std::string module;  // base name of the mapping, "[kernel.kallsyms]", "[nf_tables]"
};

// One program counter of one mapping, named once.
struct Frame {
  enum class Kind : uint8_t { kUser, kKernel, kCut };
  Kind kind = Kind::kUser;
  std::shared_ptr<const Mapping> mapping;  // kUser; null: in no mapping that we know
  uint64_t address = 0;                    // kUser: the instruction, for callers one byte before the return address. kKernel: from _stext
  uint64_t linked = 0;                     // address in the file
  uint32_t function = kNoFunction;
};

// Names of program counters, by mapping: looked up in files only at first sight.
class Frames {
 public:
  Frames(Spaces& spaces, std::string proc_root, KernelNames kernel_names)
      : spaces_(spaces), proc_root_(std::move(proc_root)), kernel_names_(std::move(kernel_names)) {}

  // Indices stay valid until Sweep.
  // The instruction at `address`: an interrupted one, or a byte of the call before a return address. process null: none is known.
  uint32_t User(Process* process, uint64_t address, int64_t now_ns);
  uint32_t Kernel(uint64_t pc, bool leaf, int64_t now_ns);
  uint32_t Cut(borescope_loss reason);

  const Frame& operator[](uint32_t index) const { return frames_[index]; }
  const FunctionName& function(uint32_t index) const { return functions_[index]; }
  // What people read of a frame: its name, or "app+0x1234".
  std::string Text(const Frame& frame) const;
  std::string Module(const Frame& frame) const;
  size_t size() const { return frames_.size(); }

  // Drops the frames that are not used; returns the new index of each old one.
  std::vector<uint32_t> Sweep(const std::vector<bool>& used);
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
  uint32_t AddFunction(std::string_view symbol, std::string_view module);

  Spaces& spaces_;
  std::string proc_root_;
  KernelNames kernel_names_;
  std::vector<Frame> frames_;
  std::unordered_map<Key, uint32_t, KeyHash> index_;
  std::vector<FunctionName> functions_;
  std::unordered_map<std::string, uint32_t> function_index_;  // by system name, NUL, module
  std::optional<symbols::Kallsyms> kallsyms_;
  bool kallsyms_failed_ = false;
  int64_t kallsyms_ns_ = 0;
};

}  // namespace borescope::stacks
