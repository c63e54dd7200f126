// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace borescope::naming {

// What became of the name of an address: name of the metric's label, text for people.
#define BORESCOPE_NAMING_TABLE(X)                                                                   \
  X(kLine, "line", "named with its source line")                                                    \
  X(kSymbol, "symbol", "named; its file has no debug information")                                  \
  X(kLinesFailed, "symbol_lines_failed", "named; its debug information could not be used")          \
  X(kGap, "no_symbol", "no symbol of its file covers it")                                           \
  X(kStripped, "no_symbols", "its file has no symbols")                                             \
  X(kUnreadable, "unreadable", "its file can't be read")                                            \
  X(kSlow, "cpu_limit", "naming it took too much CPU time")                                         \
  X(kLarge, "memory_limit", "naming it needs more memory than there is for it")                     \
  X(kCrashed, "child_died", "the process that names died over its file")                            \
  X(kNoChild, "no_child", "the process that names can't run")                                       \
  X(kQueueFull, "queue_full", "too many addresses wait for their names")

enum class Outcome : uint8_t {
#define BORESCOPE_NAMING(enumerator, label, text) enumerator,
  BORESCOPE_NAMING_TABLE(BORESCOPE_NAMING)
#undef BORESCOPE_NAMING
};
constexpr size_t kOutcomes = 0
#define BORESCOPE_NAMING(enumerator, label, text) +1
    BORESCOPE_NAMING_TABLE(BORESCOPE_NAMING)
#undef BORESCOPE_NAMING
    ;
std::string_view OutcomeLabel(Outcome outcome);
std::string_view OutcomeText(Outcome outcome);

// One function at an address. Bounded, valid UTF-8 without control characters.
struct NamedLine {
  std::string function;     // for people: demangled, without parameters
  std::string system_name;  // as in the symbol table
  std::string file;         // source file; empty: unknown
  uint32_t line = 0, start_line = 0;  // 0: unknown
  bool operator==(const NamedLine&) const = default;
};

struct AddressNames {
  Outcome outcome = Outcome::kGap;
  std::vector<NamedLine> lines;  // innermost (inlined) first, the last is the function that is there; empty: no name
  uint64_t start = 0;            // without a name: where the function begins by call frame information; 0: unknown
  bool operator==(const AddressNames&) const = default;
};

// Asked of borescope-names, with the file's descriptor. The child may remember a file by its number.
struct NameRequest {
  static constexpr size_t kMaxAddresses = 256;
  enum Kind : uint32_t { kName, kFile };  // kFile: answers a kWant, with the descriptor or without
  uint64_t number = 0;                    // the answers have it, too
  uint32_t kind = kName;
  uint32_t count = 0;  // of addresses
  uint64_t file = 0;
  uint64_t bytes = 0;  // of what the descriptor is of
  uint32_t lines = 0;  // 1: inlined functions and source lines are wanted, 0: the symbol is enough
  uint32_t pad = 0;
  uint64_t addresses[kMaxAddresses] = {};  // as linked
};

// What the child can't open itself: the sampler looks for it under the root directory of the file's process.
struct Wanted {
  enum Kind : uint8_t {
    kBuildId,    // the debug file of build_id
    kDebugLink,  // the debug file `name`, found by .gnu_debuglink
    kAltLink,    // what .gnu_debugaltlink names: build_id, else the path `name`
    kPackage,    // the .dwp file of the file
    kSplit,      // the .dwo file `name`, if relative in `directory`
  };
  static constexpr size_t kKinds = 5;
  Kind kind = kBuildId;
  uint8_t attempt = 0;  // the first that is found, the second, …
  std::string name, directory;
  std::string build_id;  // raw bytes
  bool operator==(const Wanted&) const = default;
};

// A message of the child: some names in the order of the addresses, or a file that it wants, or the end of the request.
struct NameReply {
  enum Kind : uint8_t { kNames, kWant, kDone, kError };
  static constexpr size_t kMaxBytes = 160 << 10;  // of one message
  uint64_t number = 0;
  Kind kind = kError;
  std::vector<AddressNames> names;  // kNames
  Wanted wanted;                    // kWant
  bool has_debug = false;           // kDone: asked for lines, the file would have some
  Outcome outcome = Outcome::kUnreadable;  // kError
  std::string problem;              // kDone: why there are no lines, if there should be; kError
  bool operator==(const NameReply&) const = default;
};

constexpr size_t kMaxInlined = 64;  // lines of one address; of more the outermost are kept
constexpr size_t kMaxName = 256, kMaxSystemName = 1024, kMaxPath = 1024, kMaxProblem = 256;

// What a message takes of these names, at most kMaxBytes for one address.
size_t EncodedBytes(const AddressNames& names);
std::string Encode(const NameReply& reply);
// The other side may have been taken over: bounds are checked, texts made safe. Nothing: it is no message.
std::optional<NameReply> Decode(std::string_view bytes);

}  // namespace borescope::naming
