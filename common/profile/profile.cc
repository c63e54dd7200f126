// SPDX-License-Identifier: Apache-2.0
#include "common/profile/profile.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "common/profile/library.h"

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
  uint64_t h = Mix(Mix(l.mapping, l.address), l.function_start);
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

// The name of a top table's row.
std::string RowName(const Profile& profile, const Location& location, size_t line_index) {
  if (!location.lines.empty()) return FrameName(profile, location, line_index);
  if (location.mapping == kNone) return "[unknown]";
  if (IsAnonymous(profile.mappings()[location.mapping].filename)) return "[anonymous]";
  Location function = location;
  if (location.function_start != 0) function.address = location.function_start;
  return FrameName(profile, function);
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
  // The squares of the whole are known when those of both parts are.
  if (!other.samples_.empty()) squares = (samples_.empty() || squares > 0) && other.squares > 0 ? squares + other.squares : 0;

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
    translated.function_start = location.function_start;
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

size_t Profile::DefaultValue() const {
  for (size_t i = 0; i < sample_types.size(); ++i) {
    if (sample_types[i].type == default_sample_type) return i;
  }
  return sample_types.empty() ? 0 : sample_types.size() - 1;
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

double EffectiveSamples(const Profile& profile) {
  if (profile.sample_types.empty()) return 0;
  double count = 0;
  for (size_t i = 0; i < profile.sample_types.size(); ++i) {
    if (profile.sample_types[i].unit == "count") count = static_cast<double>(profile.Total(i));
  }
  double total = static_cast<double>(profile.Total(profile.DefaultValue()));
  if (!(profile.squares > 0) || total <= 0) return count;
  double effective = total * total / profile.squares;
  return count > 0 ? std::min(effective, count) : effective;
}

std::string TopLocation(const TopRow& row) { return row.line > 0 ? row.file + ":" + std::to_string(row.line) : row.file; }

std::string TopFunctionName(const TopRow& row) { return row.library ? row.function + " [library]" : row.function; }

std::vector<TopRow> Top(const Profile& profile, size_t value_index, size_t limit) {
  std::vector<TopRow> rows;
  std::map<std::pair<std::string, std::string>, uint32_t> row_index;  // by name and path of the source or mapping
  struct Place {                                                      // a line of a row
    uint32_t row;
    int64_t line, own = 0, total = 0;
  };
  std::vector<Place> places;
  std::map<std::pair<uint32_t, int64_t>, uint32_t> place_index;
  struct Frame {
    uint32_t place;
    FrameKind kind;
  };
  std::vector<std::vector<Frame>> frames_of;  // of each location, innermost first
  frames_of.reserve(profile.locations().size());
  std::unordered_map<uint64_t, FrameKind> kinds;  // by function and mapping
  for (const Location& location : profile.locations()) {
    std::vector<Frame>& frames = frames_of.emplace_back();
    const std::string* mapping = location.mapping == kNone ? nullptr : &profile.mappings()[location.mapping].filename;
    for (size_t i = 0; i < std::max<size_t>(1, location.lines.size()); ++i) {
      const Line line = i < location.lines.size() ? location.lines[i] : Line{};
      const Function* function = line.function == kNone ? nullptr : &profile.functions()[line.function];
      auto [kind, new_kind] = kinds.try_emplace(uint64_t{line.function} << 32 | location.mapping);
      FrameText text;
      if (mapping) text.mapping = *mapping;
      if (function) {
        text.name = function->name.empty() ? function->system_name : function->name;
        text.system_name = function->system_name;
        text.source = function->filename;
      }
      if (new_kind) kind->second = Classify(text);
      std::string_view path = text.source.empty() ? text.mapping : text.source;
      auto [row, new_row] = row_index.try_emplace(std::pair(RowName(profile, location, i), std::string(path)), static_cast<uint32_t>(rows.size()));
      if (new_row) {
        rows.push_back({});
        rows.back().function = row->first.first;
        rows.back().file = BaseName(path);
        rows.back().library = kind->second == FrameKind::kLibrary || kind->second == FrameKind::kEntry;
      }
      int64_t number = text.source.empty() ? 0 : line.line;
      auto [place, new_place] = place_index.try_emplace(std::pair(row->second, number), static_cast<uint32_t>(places.size()));
      if (new_place) places.push_back({row->second, number});
      frames.push_back({place->second, kind->second});
    }
  }

  std::vector<size_t> last_sample(rows.size(), SIZE_MAX);  // recursion counts once a stack
  for (size_t s = 0; s < profile.samples().size(); ++s) {
    const Sample& sample = profile.samples()[s];
    int64_t value = sample.values[value_index];
    // Whose own time it is: the innermost frame of the application, else the outermost of a library, that of a thread's entry, the cut.
    const Frame* owner = nullptr;
    for (uint32_t location : sample.locations) {
      for (const Frame& frame : frames_of[location]) {
        if (owner == nullptr || (owner->kind != FrameKind::kApplication && frame.kind <= owner->kind)) owner = &frame;
        Place& place = places[frame.place];
        if (std::exchange(last_sample[place.row], s) == s) continue;
        place.total = SaturatingAdd(place.total, value);
      }
    }
    if (owner != nullptr) places[owner->place].own = SaturatingAdd(places[owner->place].own, value);
  }

  std::vector<int64_t> line_total(rows.size(), INT64_MIN);
  for (const Place& place : places) {
    TopRow& row = rows[place.row];
    row.own = SaturatingAdd(row.own, place.own);
    row.total = SaturatingAdd(row.total, place.total);
    if (std::pair(place.own, place.total) <= std::pair(row.line_own, line_total[place.row])) continue;
    row.line = place.line;
    row.line_own = place.own;
    line_total[place.row] = place.total;
  }
  auto before = [](const TopRow& a, const TopRow& b) {
    if (a.own != b.own) return a.own > b.own;
    if (a.total != b.total) return a.total > b.total;
    return std::tie(a.function, a.file) < std::tie(b.function, b.file);
  };
  size_t keep = std::min(limit, rows.size());
  std::partial_sort(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(keep), rows.end(), before);
  rows.resize(keep);
  return rows;
}

}  // namespace borescope::profile
