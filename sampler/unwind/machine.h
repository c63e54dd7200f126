// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "sampler/symbols/elf_file.h"

namespace borescope::unwind {

// A machine's registers as DWARF numbers them: bpf/abi/unwind.h, for every machine whose files are read on any.
struct MachineRegisters {
  uint8_t fp, sp;
  uint8_t return_address;  // its column
  uint8_t count;           // those below are registers that rules may name
  bool links;              // a call leaves the return address in the register return_address, not on the stack
};

constexpr MachineRegisters RegistersOf(symbols::Machine machine) {
  return machine == symbols::Machine::kArm64 ? MachineRegisters{29, 31, 30, 32, true} : MachineRegisters{6, 7, 16, 16, false};
}

}  // namespace borescope::unwind
