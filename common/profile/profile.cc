// SPDX-License-Identifier: Apache-2.0
#include "common/profile/profile.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <limits>
#include <unordered_map>
#include <utility>

namespace borescope::profile {
namespace {

uint64_t Mix(uint64_t seed, uint64_t value) { return XXH3_64bits_withSeed(&value, sizeof value, seed); }
uint64_t Mix(uint64_t seed, std::string_view s) { return XXH3_64bits_withSeed(s.data(), s.size(), seed); }

uint64_t Hash(const Mapping& m) {
  uint64_t h = Mix(m.start, m.limit);
  h = Mix(h, m.file_offset);
  h = Mix(h, m.filename);
  return Mix(h, m.build_id);
}

uint64_t Hash(const Function& f) {
  uint64_t h = Mix(static_cast<uint64_t>(f.start_line), f.name);
  h = Mix(h, f.system_name);
  return Mix(h, f.filename);
}

uint64_t Hash(const Location& l) {
  uint64_t h = Mix(l.mapping, l.address);
  for (const Line& line : l.lines) h = Mix(Mix(h, line.function), static_cast<uint64_t>(line.line));
  return h;
}

uint64_t Hash(std::span<const uint32_t> locations, const std::map<std::string, std::string>& labels) {
  uint64_t h = XXH3_64bits(locations.data(), locations.size_bytes());
  for (const auto& [key, value] : labels) h = Mix(Mix(h, key), value);
  return h;
}

template <typename Row>
uint32_t Intern(std::vector<Row>& rows, RowIndex& index, const Row& row) {
  uint64_t hash = Hash(row);
  uint32_t found = index.Find(hash, [&](uint32_t i) { return rows[i] == row; });
  if (found != kNone) return found;
  auto position = static_cast<uint32_t>(rows.size());
  rows.push_back(row);
  index.Insert(hash, position);
  return position;
}

std::string_view BaseName(std::string_view path) {
  size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::string FrameLocation(const Profile& profile, const Location& location, size_t line_index) {
  if (line_index < location.lines.size() && location.lines[line_index].function != kNone) {
    const Function& function = profile.functions()[location.lines[line_index].function];
    if (!function.filename.empty()) {
      std::string text(BaseName(function.filename));
      if (function.start_line > 0) text += ":" + std::to_string(function.start_line);
      return text;
    }
  }
  return location.mapping == kNone ? "" : std::string(BaseName(profile.mappings()[location.mapping].filename));
}

}  // namespace

int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a > 0 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

void RowIndex::Insert(uint64_t hash, uint32_t row) {
  if (slots_.size() <= used_ * 2) {
    std::vector<Slot> old(std::max<size_t>(16, slots_.size() * 2));
    old.swap(slots_);
    used_ = 0;
    for (const Slot& slot : old) {
      if (slot.row != kNone) Insert(slot.hash, slot.row);
    }
  }
  size_t i = hash & (slots_.size() - 1);
  while (slots_[i].row != kNone) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {hash, row};
  ++used_;
}

uint32_t Profile::AddMapping(const Mapping& mapping) { return Intern(mappings_, mapping_index_, mapping); }
uint32_t Profile::AddFunction(const Function& function) { return Intern(functions_, function_index_, function); }
uint32_t Profile::AddLocation(const Location& location) { return Intern(locations_, location_index_, location); }

void Profile::AddSample(std::span<const uint32_t> locations, std::span<const int64_t> values,
                        const std::map<std::string, std::string>& labels) {
  assert(values.size() == sample_types.size());
  uint64_t hash = Hash(locations, labels);
  uint32_t found = sample_index_.Find(
      hash, [&](uint32_t i) { return std::ranges::equal(samples_[i].locations, locations) && samples_[i].labels == labels; });
  if (found != kNone) {
    std::vector<int64_t>& sums = samples_[found].values;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = SaturatingAdd(sums[i], values[i]);
    return;
  }
  auto position = static_cast<uint32_t>(samples_.size());
  samples_.push_back({{locations.begin(), locations.end()}, labels, {values.begin(), values.end()}});
  sample_index_.Insert(hash, position);
}

bool Profile::Merge(const Profile& other) {
  if (sample_types.empty() && samples_.empty()) {
    sample_types = other.sample_types;
    period_type = other.period_type;
    period = other.period;
    default_sample_type = other.default_sample_type;
  }
  if (sample_types != other.sample_types) return false;

  std::vector<uint32_t> mapping_of, function_of, location_of;
  mapping_of.reserve(other.mappings_.size());
  for (const Mapping& mapping : other.mappings_) mapping_of.push_back(AddMapping(mapping));
  function_of.reserve(other.functions_.size());
  for (const Function& function : other.functions_) function_of.push_back(AddFunction(function));
  location_of.reserve(other.locations_.size());
  Location translated;
  for (const Location& location : other.locations_) {
    translated.mapping = location.mapping == kNone ? kNone : mapping_of[location.mapping];
    translated.address = location.address;
    translated.lines = location.lines;
    for (Line& line : translated.lines) {
      if (line.function != kNone) line.function = function_of[line.function];
    }
    location_of.push_back(AddLocation(translated));
  }
  std::vector<uint32_t> stack;
  for (const Sample& sample : other.samples_) {
    stack.clear();
    for (uint32_t location : sample.locations) stack.push_back(location_of[location]);
    AddSample(stack, sample.values, sample.labels);
  }

  if (time_ns == 0) {
    time_ns = other.time_ns;
    duration_ns = other.duration_ns;
  } else if (other.time_ns != 0) {
    int64_t end = std::max(SaturatingAdd(time_ns, duration_ns), SaturatingAdd(other.time_ns, other.duration_ns));
    time_ns = std::min(time_ns, other.time_ns);
    duration_ns = SaturatingAdd(end, -time_ns);
  }
  for (const std::string& comment : other.comments) {
    if (std::ranges::find(comments, comment) == comments.end()) comments.push_back(comment);
  }
  return true;
}

int64_t Profile::Total(size_t value_index) const {
  int64_t total = 0;
  for (const Sample& sample : samples_) total = SaturatingAdd(total, sample.values[value_index]);
  return total;
}

std::string FrameName(const Profile& profile, const Location& location, size_t line_index) {
  if (line_index < location.lines.size() && location.lines[line_index].function != kNone) {
    const Function& function = profile.functions()[location.lines[line_index].function];
    if (!function.name.empty()) return function.name;
    if (!function.system_name.empty()) return function.system_name;
  }
  char offset[32];
  if (location.mapping == kNone) {
    snprintf(offset, sizeof offset, "0x%llx", static_cast<unsigned long long>(location.address));
    return offset;
  }
  const Mapping& mapping = profile.mappings()[location.mapping];
  snprintf(offset, sizeof offset, "+0x%llx",
           static_cast<unsigned long long>(location.address - mapping.start + mapping.file_offset));
  return std::string(BaseName(mapping.filename)) + offset;
}

std::vector<TopRow> Top(const Profile& profile, size_t value_index, size_t count_index, size_t limit) {
  // One row for each (name, place): rows_of[location] lists those of its lines, innermost first.
  std::vector<TopRow> rows;
  std::map<std::pair<std::string, std::string>, uint32_t> index;
  std::vector<std::vector<uint32_t>> rows_of;
  rows_of.reserve(profile.locations().size());
  for (const Location& location : profile.locations()) {
    std::vector<uint32_t>& mine = rows_of.emplace_back();
    for (size_t line = 0; line < std::max<size_t>(1, location.lines.size()); ++line) {
      std::pair key{FrameName(profile, location, line), FrameLocation(profile, location, line)};
      auto [it, inserted] = index.try_emplace(key, static_cast<uint32_t>(rows.size()));
      if (inserted) {
        rows.push_back({});
        rows.back().function = key.first;
        rows.back().location = key.second;
      }
      mine.push_back(it->second);
    }
  }
  std::vector<size_t> last_sample(rows.size(), SIZE_MAX);  // recursion counts once a stack
  for (size_t s = 0; s < profile.samples().size(); ++s) {
    const Sample& sample = profile.samples()[s];
    int64_t value = sample.values[value_index], count = sample.values[count_index];
    for (size_t depth = 0; depth < sample.locations.size(); ++depth) {
      const std::vector<uint32_t>& frames = rows_of[sample.locations[depth]];
      if (depth == 0) {
        TopRow& leaf = rows[frames[0]];
        leaf.own = SaturatingAdd(leaf.own, value);
        leaf.own_samples = SaturatingAdd(leaf.own_samples, count);
      }
      for (uint32_t row : frames) {
        if (std::exchange(last_sample[row], s) == s) continue;
        rows[row].total = SaturatingAdd(rows[row].total, value);
        rows[row].total_samples = SaturatingAdd(rows[row].total_samples, count);
      }
    }
  }
  auto before = [](const TopRow& a, const TopRow& b) {
    if (a.own != b.own) return a.own > b.own;
    if (a.total != b.total) return a.total > b.total;
    return a.function < b.function;
  };
  size_t keep = std::min(limit, rows.size());
  std::partial_sort(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(keep), rows.end(), before);
  rows.resize(keep);
  return rows;
}

}  // namespace borescope::profile
