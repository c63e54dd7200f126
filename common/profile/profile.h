// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace borescope::profile {

// The interned model of one profile, close to google/pprof's profile.proto. Indices are positions in the profile's own tables.

struct ValueType {
  std::string type;  // "cpu", "samples"
  std::string unit;  // "nanoseconds", "count"
  auto operator<=>(const ValueType&) const = default;
};

struct Mapping {
  uint64_t start = 0, limit = 0, file_offset = 0;  // addresses in the process
  std::string filename;                            // "/usr/bin/app", "[kernel.kallsyms]", "[vdso]"
  std::string build_id;                            // lower-case hex, or empty
  bool has_functions = false, has_filenames = false, has_line_numbers = false;
  auto operator<=>(const Mapping&) const = default;
};

struct Function {
  std::string name;         // demangled
  std::string system_name;  // as in the symbol table
  std::string filename;     // source file, or empty
  int64_t start_line = 0;
  auto operator<=>(const Function&) const = default;
};

constexpr uint32_t kNone = UINT32_MAX;

struct Line {
  uint32_t function = kNone;
  int64_t line = 0;
  auto operator<=>(const Line&) const = default;
};

struct Location {
  uint32_t mapping = kNone;
  uint64_t address = 0;
  std::vector<Line> lines;  // innermost (inlined) first; empty: not symbolized
  uint64_t function_start = 0;  // not symbolized: where its function begins, if that is known. Not part of a pprof
  auto operator<=>(const Location&) const = default;
};

struct Sample {
  std::vector<uint32_t> locations;            // leaf first
  std::map<std::string, std::string> labels;  // string labels of this sample
  std::vector<int64_t> values;                // one for each sample type
};

// Open-addressing index from the hash of a table's row to its position; the rows stay in the table, so it copies and moves with it.
class RowIndex {
 public:
  // The position of the row with this hash for which equal(position) holds, or kNone.
  template <typename Equal>
  uint32_t Find(uint64_t hash, const Equal& equal) const {
    if (slots_.empty()) return kNone;
    for (size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].row == kNone) return kNone;
      if (slots_[i].hash == hash && equal(slots_[i].row)) return slots_[i].row;
    }
  }
  void Insert(uint64_t hash, uint32_t row);

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t row = kNone;
  };
  std::vector<Slot> slots_;  // a power of two, at most half full
  size_t used_ = 0;
};

// Not thread-safe. Adding equal stacks and labels again adds the values.
class Profile {
 public:
  std::vector<ValueType> sample_types;  // set before the first AddSample
  ValueType period_type;
  int64_t period = 0;
  int64_t time_ns = 0;      // wall clock at the start of the window, since the epoch
  int64_t duration_ns = 0;
  std::string default_sample_type;
  std::vector<std::string> comments;
  // Sum of the squared weights, in the default sample type, of the samples as they were taken, before equal stacks were added up; 0: not
  // known. Whoever adds samples adds to it.
  double squares = 0;

  uint32_t AddMapping(const Mapping& mapping);
  uint32_t AddFunction(const Function& function);
  uint32_t AddLocation(const Location& location);
  // values.size() must equal sample_types.size(), the locations be indices of ours. Sums saturate instead of overflowing.
  void AddSample(std::span<const uint32_t> locations, std::span<const int64_t> values,
                 const std::map<std::string, std::string>& labels = {});

  // Adds all samples of other, whose sample types must equal ours (a profile without sample types takes other's types and period);
  // time and duration become the union's. False, and nothing changed, when the types differ.
  bool Merge(const Profile& other);

  const std::vector<Mapping>& mappings() const { return mappings_; }
  const std::vector<Function>& functions() const { return functions_; }
  const std::vector<Location>& locations() const { return locations_; }
  const std::vector<Sample>& samples() const { return samples_; }
  // The default sample type, else the last, as pprof's readers do.
  size_t DefaultValue() const;
  // Sum of values[value_index] over all samples.
  int64_t Total(size_t value_index) const;

 private:
  std::vector<Mapping> mappings_;
  std::vector<Function> functions_;
  std::vector<Location> locations_;
  std::vector<Sample> samples_;
  RowIndex mapping_index_, function_index_, location_index_, sample_index_;
};

// a + b, or the nearest number that fits: values come from profiles that others wrote.
int64_t SaturatingAdd(int64_t a, int64_t b);

// What people read for a location's innermost frame: the function's name, else "libfoo.so+0x1f2" (offset in the file).
std::string FrameName(const Profile& profile, const Location& location, size_t line_index = 0);

// Of how many samples of equal weight the shares of `profile` have the errors: (sum of weights)² / sum of squared weights. From the
// counts where the squares are not known, and 0 where there are none either.
double EffectiveSamples(const Profile& profile);

// One row of a top table: a function. own = its own time: that of its frames at the leaf and of all that they call in libraries, the
// runtime and the kernel (library.h), up to the next function of the application. total = anywhere in the stack, counted once a stack.
struct TopRow {
  std::string function;
  std::string file;  // base name of the source file, else of the mapping; may be empty
  int64_t line = 0;  // of the file, where most of the own time is, else of the total: the instruction's, or the call's. 0: not known
  int64_t total = 0, own = 0;
  int64_t line_own = 0;  // own time at `line`
  // A function of a library. It has own time only of stacks in which no frame is the application's: the outermost function that says
  // what they do is charged.
  bool library = false;
};

// What people read: "hash.go:41", "app", and of a library's function "malloc [library]".
std::string TopLocation(const TopRow& row);
std::string TopFunctionName(const TopRow& row);

// Rows by own time, largest first, for values[value_index]. Code without a name is one row for each function whose borders are known
// ("app+0x1240", where it begins), for each address else; outside of files one for all ("[anonymous]", "[unknown]").
std::vector<TopRow> Top(const Profile& profile, size_t value_index, size_t limit);

}  // namespace borescope::profile
