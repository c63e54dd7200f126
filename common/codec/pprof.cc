// SPDX-License-Identifier: Apache-2.0
#include "common/codec/pprof.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/strings.h"
#include "common/codec/wire.h"
#include "common/gzip/gzip.h"

namespace borescope::codec {
namespace {

using profile::kNone;

// Field numbers of the public format (proto/perftools/profile.proto).
enum ProfileField {
  kSampleType = 1, kSample, kMapping, kLocation, kFunction, kString, kTimeNanos = 9, kDurationNanos, kPeriodType, kPeriod,
  kComment, kDefaultSampleType
};

// The comment that keeps profile::EffectiveSamples through merges.
constexpr std::string_view kEffective = "effective samples ", kSquares = ", sum of squared weights ";

std::string EffectiveComment(const profile::Profile& profile) {
  char text[128];
  snprintf(text, sizeof text, "%.*s%.1f%.*s%.17g", static_cast<int>(kEffective.size()), kEffective.data(), profile::EffectiveSamples(profile),
           static_cast<int>(kSquares.size()), kSquares.data(), profile.squares);
  return text;
}

// 0: it is another comment.
double SquaresOf(std::string_view comment) {
  size_t at = comment.find(kSquares);
  if (!comment.starts_with(kEffective) || at == std::string_view::npos) return 0;
  std::string_view number = comment.substr(at + kSquares.size());
  double squares = 0;
  auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), squares);
  return error == std::errc() && end == number.data() + number.size() && std::isfinite(squares) && squares > 0 ? squares : 0;
}

class StringTable {
 public:
  StringTable() { Index(""); }
  uint64_t Index(std::string_view s) {
    auto [it, inserted] = index_.try_emplace(s, strings_.size());
    if (inserted) strings_.push_back(s);
    return it->second;
  }
  const std::vector<std::string_view>& strings() const { return strings_; }

 private:
  std::vector<std::string_view> strings_;  // into the profile, which outlives us
  std::unordered_map<std::string_view, uint64_t> index_;
};

void WriteValueType(WireWriter& out, uint32_t field, const profile::ValueType& type, StringTable& strings) {
  std::string message;
  WireWriter w(&message);
  w.Varint(1, strings.Index(type.type));
  w.Varint(2, strings.Index(type.unit));
  out.Entry(field, message);
}

// Readers take the first mapping for the program itself: executables before libraries, the kernel and the like last.
std::vector<size_t> MappingOrder(const std::vector<profile::Mapping>& mappings) {
  auto rank = [&](size_t i) {
    const std::string& name = mappings[i].filename;
    if (name.empty() || name[0] == '[') return 2;
    return name.find(".so", name.rfind('/') + 1) != std::string::npos ? 1 : 0;
  };
  std::vector<size_t> order(mappings.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, rank);
  return order;
}

bool ValidUtf8(std::string_view s) {
  return std::ranges::all_of(s, [](char c) { return static_cast<unsigned char>(c) < 0x80; }) || SanitizeUtf8(s) == s;
}

// A table's ids to positions in the profile. Most writers number from 1, so that an array does.
class IdMap {
 public:
  explicit IdMap(size_t rows) : dense_(rows + 1, kNone) {}
  // False: it is there already.
  bool Insert(uint64_t id, uint32_t position) {
    if (id >= dense_.size()) return sparse_.emplace(id, position).second;
    return std::exchange(dense_[id], position) == kNone;
  }
  uint32_t Find(uint64_t id) const {
    if (id < dense_.size()) return dense_[id];
    auto it = sparse_.find(id);
    return it == sparse_.end() ? kNone : it->second;
  }

 private:
  std::vector<uint32_t> dense_;
  std::unordered_map<uint64_t, uint32_t> sparse_;
};

class Decoder {
 public:
  Decoder(std::string_view bytes, const PprofLimits& limits, profile::Profile* into) : bytes_(bytes), limits_(limits), into_(*into) {}

  Status Run() {
    Collect();
    if (!failed_) CheckStrings();
    if (!failed_) Header();
    if (failed_) return error_;
    IdMap mappings(mappings_.size()), functions(functions_.size()), locations(locations_.size());
    Mappings(mappings);
    if (!failed_) Functions(functions);
    if (!failed_) Locations(mappings, functions, locations);
    const bool known = into_.samples().empty() || into_.squares > 0;
    if (!failed_) Samples(locations);
    if (failed_) return error_;
    if (!samples_.empty()) into_.squares = known && squares_ > 0 ? into_.squares + squares_ : 0;
    return OkStatus();
  }

 private:
  struct RawValueType {
    int64_t type = 0, unit = 0;
  };

  // Finds the parts of the message without decoding them: the string table comes after those that use it.
  void Collect() {
    WireReader in(bytes_);
    while (!failed_ && in.Next()) {
      switch (in.field()) {
        case kSampleType: Append(sample_types_, in.Bytes(), 64, "sample types"); break;
        case kSample: Append(samples_, in.Bytes(), limits_.max_samples, "samples"); break;
        case kMapping: Append(mappings_, in.Bytes(), limits_.max_table, "mappings"); break;
        case kLocation: Append(locations_, in.Bytes(), limits_.max_table, "locations"); break;
        case kFunction: Append(functions_, in.Bytes(), limits_.max_table, "functions"); break;
        case kString: Append(strings_, in.Bytes(), limits_.max_table, "strings"); break;
        case kTimeNanos: head_.time_ns = in.Int(); break;
        case kDurationNanos: head_.duration_ns = in.Int(); break;
        case kPeriodType: period_type_ = in.Bytes(); break;
        case kPeriod: head_.period = in.Int(); break;
        case kComment:
          in.Varints([&](uint64_t index) {
            Append(comments_, static_cast<int64_t>(index), 64, "comments");
            return !failed_;
          });
          break;
        case kDefaultSampleType: default_sample_type_ = in.Int(); break;
        default: break;
      }
    }
    Check(in, "the message");
    if (head_.time_ns < 0) Invalid("time_nanos is " + std::to_string(head_.time_ns) + ", before 1970");
    if (head_.duration_ns < 0) Invalid("duration_nanos is " + std::to_string(head_.duration_ns) + ", below 0");
  }

  void CheckStrings() {
    if (strings_.empty() || !strings_[0].empty()) return Invalid("entry 0 of the string table is not the empty string");
    for (size_t i = 0; i < strings_.size(); ++i) {
      if (!ValidUtf8(strings_[i])) return Invalid("string " + std::to_string(i) + " is not UTF-8");
    }
  }

  void Header() {
    if (sample_types_.empty()) return Invalid("it has no sample types");
    for (std::string_view raw : sample_types_) head_.sample_types.push_back(ValueType(raw));
    head_.period_type = ValueType(period_type_);
    head_.default_sample_type = String(default_sample_type_);
    for (int64_t comment : comments_) {
      std::string_view text = String(comment);
      if (double squares = SquaresOf(text); squares > 0) {
        squares_ = squares;
      } else {
        head_.comments.emplace_back(text);
      }
    }
    if (!failed_ && !into_.Merge(head_)) Invalid("its sample types are others than those of what it is added to");
  }

  profile::ValueType ValueType(std::string_view raw) {
    RawValueType value;
    WireReader in(raw);
    while (in.Next()) {
      if (in.field() == 1) value.type = in.Int();
      if (in.field() == 2) value.unit = in.Int();
    }
    Check(in, "a value type");
    return {std::string(String(value.type)), std::string(String(value.unit))};
  }

  void Mappings(IdMap& ids) {
    for (std::string_view raw : mappings_) {
      profile::Mapping mapping;
      uint64_t id = 0;
      WireReader in(raw);
      while (in.Next()) {
        switch (in.field()) {
          case 1: id = in.Varint(); break;
          case 2: mapping.start = in.Varint(); break;
          case 3: mapping.limit = in.Varint(); break;
          case 4: mapping.file_offset = in.Varint(); break;
          case 5: mapping.filename = String(in.Int()); break;
          case 6: mapping.build_id = String(in.Int()); break;
          case 7: mapping.has_functions = in.Varint() != 0; break;
          case 8: mapping.has_filenames = in.Varint() != 0; break;
          case 9: mapping.has_line_numbers = in.Varint() != 0; break;
          default: break;
        }
      }
      Check(in, "a mapping");
      if (failed_) return;
      Register(ids, id, into_.AddMapping(mapping), "mapping");
    }
  }

  void Functions(IdMap& ids) {
    profile::Function function;  // one for all, and below: its memory is used again
    for (std::string_view raw : functions_) {
      function.name.clear();
      function.system_name.clear();
      function.filename.clear();
      function.start_line = 0;
      uint64_t id = 0;
      WireReader in(raw);
      while (in.Next()) {
        switch (in.field()) {
          case 1: id = in.Varint(); break;
          case 2: function.name = String(in.Int()); break;
          case 3: function.system_name = String(in.Int()); break;
          case 4: function.filename = String(in.Int()); break;
          case 5: function.start_line = in.Int(); break;
          default: break;
        }
      }
      Check(in, "a function");
      if (failed_) return;
      Register(ids, id, into_.AddFunction(function), "function");
    }
  }

  void Locations(const IdMap& mappings, const IdMap& functions, IdMap& ids) {
    profile::Location location;
    for (std::string_view raw : locations_) {
      location.address = 0;
      location.lines.clear();
      uint64_t id = 0, mapping = 0;
      WireReader in(raw);
      while (!failed_ && in.Next()) {
        switch (in.field()) {
          case 1: id = in.Varint(); break;
          case 2: mapping = in.Varint(); break;
          case 3: location.address = in.Varint(); break;
          case 4: Append(location.lines, DecodeLine(in.Bytes(), functions), limits_.max_depth, "lines of one location"); break;
          default: break;
        }
      }
      Check(in, "a location");
      location.mapping = mapping == 0 ? kNone : Find(mappings, mapping, "mapping");
      if (failed_) return;
      Register(ids, id, into_.AddLocation(location), "location");
    }
  }

  profile::Line DecodeLine(std::string_view raw, const IdMap& functions) {
    profile::Line line;
    uint64_t function = 0;
    WireReader in(raw);
    while (in.Next()) {
      if (in.field() == 1) function = in.Varint();
      if (in.field() == 2) line.line = in.Int();
    }
    Check(in, "a line");
    line.function = Find(functions, function, "function");
    return line;
  }

  void Samples(const IdMap& locations) {
    std::vector<uint32_t> stack;
    std::vector<int64_t> values;
    std::map<std::string, std::string> labels;
    for (std::string_view raw : samples_) {
      stack.clear();
      values.clear();
      labels.clear();
      WireReader in(raw);
      while (!failed_ && in.Next()) {
        switch (in.field()) {
          case 1:
            in.Varints([&](uint64_t id) {
              Append(stack, Find(locations, id, "location"), limits_.max_depth, "frames of one sample");
              return !failed_;
            });
            break;
          case 2:
            in.Varints([&](uint64_t value) {
              Append(values, static_cast<int64_t>(value), 64, "values of one sample");
              return !failed_;
            });
            break;
          case 3: DecodeLabel(in.Bytes(), labels); break;
          default: break;
        }
      }
      Check(in, "a sample");
      if (!failed_ && values.size() != head_.sample_types.size()) {
        Invalid("a sample has " + std::to_string(values.size()) + " values, but there are " +
                std::to_string(head_.sample_types.size()) + " sample types");
      }
      if (failed_) return;
      into_.AddSample(stack, values, labels);
    }
  }

  void DecodeLabel(std::string_view raw, std::map<std::string, std::string>& labels) {
    int64_t key = 0, text = 0;
    WireReader in(raw);
    while (in.Next()) {
      if (in.field() == 1) key = in.Int();
      if (in.field() == 2) text = in.Int();
    }
    Check(in, "a label");
    if (failed_ || text == 0) return;
    if (labels.size() >= 100) return Exhausted("labels of one sample", 100);
    labels.emplace(String(key), String(text));
  }

  template <typename T>
  void Append(std::vector<T>& to, const T& value, size_t limit, std::string_view what) {
    if (to.size() >= limit) return Exhausted(what, limit);
    to.push_back(value);
  }

  std::string_view String(int64_t index) {
    if (index >= 0 && static_cast<uint64_t>(index) < strings_.size()) return strings_[static_cast<size_t>(index)];
    Invalid("string index " + std::to_string(index) + " is outside of the table of " + std::to_string(strings_.size()));
    return {};
  }

  void Register(IdMap& ids, uint64_t id, uint32_t index, std::string_view what) {
    if (id == 0) return Invalid("a " + std::string(what) + " has id 0");
    if (!ids.Insert(id, index)) Invalid("two of the " + std::string(what) + "s have id " + std::to_string(id));
  }

  uint32_t Find(const IdMap& ids, uint64_t id, std::string_view what) {
    uint32_t index = ids.Find(id);
    if (index == kNone) Invalid("there is no " + std::string(what) + " with id " + std::to_string(id));
    return index;
  }

  void Check(const WireReader& in, std::string_view what) {
    if (!in.ok()) Invalid("the bytes of " + std::string(what) + " are cut short or malformed");
  }

  void Invalid(std::string message) { Fail(ErrorCode::kInvalid, std::move(message)); }
  void Exhausted(std::string_view what, size_t limit) {
    Fail(ErrorCode::kExhausted, "it has more than " + std::to_string(limit) + " " + std::string(what) + ", the limit: split it");
  }
  void Fail(ErrorCode code, std::string message) {
    if (!std::exchange(failed_, true)) error_ = {code, "pprof: " + std::move(message)};
  }

  std::string_view bytes_;
  const PprofLimits& limits_;
  profile::Profile head_;  // all but the tables
  profile::Profile& into_;
  std::vector<std::string_view> sample_types_, samples_, mappings_, locations_, functions_, strings_;
  std::vector<int64_t> comments_;
  std::string_view period_type_;
  int64_t default_sample_type_ = 0;
  double squares_ = 0;
  bool failed_ = false;
  Error error_;
};

}  // namespace

std::string EncodePprof(const profile::Profile& profile) {
  std::string out, message, nested;
  WireWriter w(&out), m(&message), n(&nested);
  StringTable strings;
  for (const profile::ValueType& type : profile.sample_types) WriteValueType(w, kSampleType, type, strings);
  for (const profile::Sample& sample : profile.samples()) {
    message.clear();
    nested.clear();
    for (uint32_t location : sample.locations) n.Packed(location + 1);
    m.Bytes(1, nested);
    nested.clear();
    for (int64_t value : sample.values) n.Packed(static_cast<uint64_t>(value));
    m.Bytes(2, nested);
    for (const auto& [key, value] : sample.labels) {
      nested.clear();
      n.Varint(1, strings.Index(key));
      n.Varint(2, strings.Index(value));
      m.Entry(3, nested);
    }
    w.Entry(kSample, message);
  }
  std::vector<size_t> order = MappingOrder(profile.mappings());
  std::vector<uint64_t> mapping_id(order.size());
  for (size_t i = 0; i < order.size(); ++i) mapping_id[order[i]] = i + 1;
  std::vector<bool> has_inline_frames(order.size());
  for (size_t i = 0; i < profile.locations().size(); ++i) {
    const profile::Location& location = profile.locations()[i];
    if (location.mapping != kNone && location.lines.size() > 1) has_inline_frames[location.mapping] = true;
    message.clear();
    m.Varint(1, i + 1);
    if (location.mapping != kNone) m.Varint(2, mapping_id[location.mapping]);
    m.Varint(3, location.address);
    for (const profile::Line& line : location.lines) {
      if (line.function == kNone) continue;
      nested.clear();
      n.Varint(1, uint64_t{line.function} + 1);
      n.Int(2, line.line);
      m.Entry(4, nested);
    }
    w.Entry(kLocation, message);
  }
  for (size_t i : order) {
    const profile::Mapping& mapping = profile.mappings()[i];
    message.clear();
    m.Varint(1, mapping_id[i]);
    m.Varint(2, mapping.start);
    m.Varint(3, mapping.limit);
    m.Varint(4, mapping.file_offset);
    m.Varint(5, strings.Index(mapping.filename));
    m.Varint(6, strings.Index(mapping.build_id));
    m.Varint(7, mapping.has_functions);
    m.Varint(8, mapping.has_filenames);
    m.Varint(9, mapping.has_line_numbers);
    m.Varint(10, has_inline_frames[i]);
    w.Entry(kMapping, message);
  }
  for (size_t i = 0; i < profile.functions().size(); ++i) {
    const profile::Function& function = profile.functions()[i];
    message.clear();
    m.Varint(1, i + 1);
    m.Varint(2, strings.Index(function.name));
    m.Varint(3, strings.Index(function.system_name));
    m.Varint(4, strings.Index(function.filename));
    m.Int(5, function.start_line);
    w.Entry(kFunction, message);
  }
  w.Int(kTimeNanos, profile.time_ns);
  w.Int(kDurationNanos, profile.duration_ns);
  if (profile.period_type != profile::ValueType{}) WriteValueType(w, kPeriodType, profile.period_type, strings);
  w.Int(kPeriod, profile.period);
  nested.clear();
  for (const std::string& comment : profile.comments) n.Packed(strings.Index(comment));
  const std::string effective = profile.squares > 0 ? EffectiveComment(profile) : "";
  if (!effective.empty()) n.Packed(strings.Index(effective));
  w.Bytes(kComment, nested);
  w.Varint(kDefaultSampleType, strings.Index(profile.default_sample_type));
  for (std::string_view s : strings.strings()) w.Entry(kString, s);
  return out;
}

std::string EncodePprofGzip(const profile::Profile& profile) { return gzip::Gzip(EncodePprof(profile)); }

Result<profile::Profile> DecodePprof(std::string_view bytes, const PprofLimits& limits) {
  profile::Profile profile;
  RETURN_IF_ERROR(MergePprof(bytes, &profile, limits));
  return profile;
}

Status MergePprof(std::string_view bytes, profile::Profile* into, const PprofLimits& limits) {
  std::string inflated;
  if (bytes.starts_with("\x1f\x8b")) {
    auto plain = gzip::Gunzip(bytes, limits.max_bytes);
    if (!plain.ok() && plain.error().code == ErrorCode::kExhausted) {
      return Error{ErrorCode::kExhausted, "pprof: it is larger than " + std::to_string(limits.max_bytes) +
                                              " bytes uncompressed, the limit (compressed: " + std::to_string(bytes.size()) +
                                              "): split it"};
    }
    if (!plain.ok()) return plain.error().WithContext("pprof");
    inflated = *std::move(plain);
    bytes = inflated;
  }
  if (bytes.size() > limits.max_bytes) {
    return Error{ErrorCode::kExhausted, "pprof: it has " + std::to_string(bytes.size()) + " bytes uncompressed, the limit is " +
                                            std::to_string(limits.max_bytes) + ": split it"};
  }
  if (bytes.empty()) return Error{ErrorCode::kInvalid, "pprof: it is empty"};
  return Decoder(bytes, limits, into).Run();
}

}  // namespace borescope::codec
