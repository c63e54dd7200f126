// SPDX-License-Identifier: Apache-2.0
#include "common/api/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "common/api/quantity.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"

namespace borescope::api {
namespace {

using Json = nlohmann::json;

// ---- Bounds: the same as in crds/*.yaml (tests/unit/common_api compares them) ----------------------------------------------

enum class Form { kAny, kDnsLabel, kDnsSubdomain, kLabelKey, kLabelValue, kLabelName, kUid, kEvent };

struct TextRule {
  size_t max;  // characters
  Form form = Form::kAny;
};

constexpr TextRule kDnsLabel{63, Form::kDnsLabel};
constexpr TextRule kDnsSubdomain{253, Form::kDnsSubdomain};
constexpr TextRule kLabelKey{317, Form::kLabelKey};
constexpr TextRule kLabelValue{63, Form::kLabelValue};
constexpr TextRule kLabelName{63, Form::kLabelName};
constexpr TextRule kUid{63, Form::kUid};
constexpr TextRule kWord{64};
constexpr TextRule kName{256};
constexpr TextRule kProfileLabelValue{253};
constexpr TextRule kMessage{1024};
constexpr TextRule kUrl{2048};

constexpr size_t kMaxLabels = 16;
constexpr size_t kMaxContainers = 64;
constexpr size_t kMaxProfiles = kProfileKindNames.size();
constexpr size_t kMaxSinks = 4;
constexpr size_t kMaxConditions = 16;
constexpr size_t kMaxLossRows = 64;
constexpr int64_t kMaxCount = INT64_MAX;
constexpr int kMaxDurationSeconds = 3600;
constexpr int kDaySeconds = 86400;
constexpr int kMaxPublishDeadlineSeconds = 3000;  // stores refuse profiles that are older than an hour

constexpr std::array<std::string_view, 2> kKernelStacksNames = {"Auto", "Never"};
constexpr std::array<std::string_view, 2> kOnExceedNames = {"Throttle", "Stop"};
constexpr std::array<std::string_view, 2> kDesiredStateNames = {"Run", "Stop"};
constexpr std::array<std::string_view, 5> kWorkloadKinds = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"};
constexpr std::array<std::string_view, 4> kOperators = {"In", "NotIn", "Exists", "DoesNotExist"};

std::string Join(const auto& parts, std::string_view separator = ", ") {
  std::string text;
  for (const auto& part : parts) {
    if (!text.empty()) text += separator;
    text += part;
  }
  return text;
}

bool IsLower(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool IsAlnum(char c) { return IsLower(c) || (c >= 'A' && c <= 'Z'); }

// First and last character pass `edge`, those between pass it or stand in `inner`.
bool Shaped(std::string_view s, bool (*edge)(char), std::string_view inner) {
  if (s.empty() || !edge(s.front()) || !edge(s.back())) return false;
  return std::all_of(s.begin(), s.end(), [&](char c) { return edge(c) || inner.find(c) != std::string_view::npos; });
}

bool HasForm(std::string_view s, Form form) {
  switch (form) {
    case Form::kAny:
      return true;
    case Form::kDnsLabel:
      return Shaped(s, IsLower, "-");
    case Form::kDnsSubdomain:
      return Shaped(s, IsLower, "-.");
    case Form::kLabelKey: {
      size_t slash = s.find('/');
      if (slash == std::string_view::npos) return Shaped(s, IsAlnum, "-_.");
      return Shaped(s.substr(0, slash), IsLower, "-.") && Shaped(s.substr(slash + 1), IsAlnum, "-_.");
    }
    case Form::kLabelValue:
      return s.empty() || Shaped(s, IsAlnum, "-_.");
    case Form::kLabelName:
      return !s.empty() && !(s[0] >= '0' && s[0] <= '9') &&
             std::all_of(s.begin(), s.end(), [](char c) { return IsAlnum(c) || c == '_'; });
    case Form::kUid:
      return std::all_of(s.begin(), s.end(), [](char c) { return IsAlnum(c) || c == '-'; });
    case Form::kEvent:
      return !s.empty() && !(s[0] >= '0' && s[0] <= '9') && Shaped(s, IsLower, "-");
  }
  return false;
}

std::string Describe(const TextRule& rule) {
  std::string what = "a text";
  switch (rule.form) {
    case Form::kAny:
      break;
    case Form::kDnsLabel:
      what = "a name of lower-case letters, digits and '-'";
      break;
    case Form::kDnsSubdomain:
      what = "a name of lower-case letters, digits, '-' and '.'";
      break;
    case Form::kLabelKey:
      what = "a label key such as app.kubernetes.io/name";
      break;
    case Form::kLabelValue:
      what = "a label value of letters, digits, '-', '_' and '.'";
      break;
    case Form::kLabelName:
      what = "a label name of letters, digits and '_' that does not begin with a digit";
      break;
    case Form::kUid:
      what = "a uid of letters, digits and '-'";
      break;
    case Form::kEvent:
      what = "an event such as cache-misses";
      break;
  }
  return what + " of at most " + std::to_string(rule.max) + " characters";
}

// As the API server counts: code points.
size_t Characters(std::string_view s) {
  return static_cast<size_t>(std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// ---- Reading ---------------------------------------------------------------------------------------------------------------

// Where a value stands; made into text only for an error.
struct Path {
  const Path* up = nullptr;
  std::string_view key;  // empty: an element of a list
  size_t index = 0;

  std::string Text() const {
    std::string text = up != nullptr ? up->Text() : "";
    if (key.empty()) return up == nullptr ? "" : text + "[" + std::to_string(index) + "]";
    // Keys of maps may hold anything; those of fields are plain.
    bool plain = HasForm(key, Form::kLabelName);
    if (!plain) return text + "[" + JsonQuote(SanitizeName(key, 200)) + "]";
    return text.empty() ? std::string(key) : text + "." + std::string(key);
  }
};

std::string Show(const Json& value) {
  switch (value.type()) {
    case Json::value_t::string:
      return "'" + SanitizeName(*value.get_ptr<const std::string*>(), 80) + "'";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list of " + std::to_string(value.size());
    default:
      return value.dump();
  }
}

constexpr bool kRequired = true;

// An object being read. The first error is kept and ends everything after it.
class Reader {
 public:
  static constexpr bool kReading = true;

  Reader(const Json& object, const Path& path, std::optional<Error>& error) : object_(object), path_(path), error_(error) {
    if (!object.is_object()) FailAt(path, object, "give an object");
  }

  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  void Text(std::string_view key, std::string& out, TextRule rule, bool required = false) {
    const Json* value = FindOrFail(key, required, Describe(rule));
    if (value == nullptr) return;
    ReadText(*value, Path{&path_, key}, rule, out);
    if (required && out.empty()) FailAt(Path{&path_, key}, *value, "give " + Describe(rule));
  }

  void Texts(std::string_view key, std::vector<std::string>& out, size_t most, TextRule rule, size_t least = 0) {
    const Json* value = Find(key);
    if (value == nullptr || !CheckList(key, *value, least, most)) return;
    out.clear();
    Path path{&path_, key};
    for (size_t i = 0; i < value->size() && !error_; ++i) {
      std::string text;
      Path at{&path, {}, i};
      ReadText((*value)[i], at, rule, text);
      if (std::find(out.begin(), out.end(), text) != out.end()) FailAt(at, (*value)[i], "give each value once");
      out.push_back(std::move(text));
    }
  }

  template <typename T>
  void Int(std::string_view key, T& out, int64_t least, int64_t most, bool required = false) {
    std::string want = "give a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    const Json* value = FindOrFail(key, required, want);
    if (value == nullptr) return;
    int64_t number = 0;
    if (ReadInt(*value, Path{&path_, key}, least, most, number)) out = static_cast<T>(number);
  }

  void OptionalInt(std::string_view key, std::optional<int>& out, int64_t least, int64_t most) {
    if (Has(key)) Int(key, out.emplace(), least, most);
  }

  void Bool(std::string_view key, bool& out) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_boolean()) return FailAt(Path{&path_, key}, *value, "give true or false");
    out = value->get<bool>();
  }

  // The whole number of nanoseconds in a string, for readers that take JSON numbers for doubles.
  void IntText(std::string_view key, int64_t& out) {
    std::string text;
    Text(key, text, TextRule{18});  // 31 years: always fits
    if (error_ || text.empty()) return;
    std::optional<uint64_t> number = ParseUint(text);
    if (!number) return FailAt(Path{&path_, key}, text, "give a string of digits");
    out = static_cast<int64_t>(*number);
  }

  void Time(std::string_view key, int64_t& out) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    const std::string* text = value->get_ptr<const std::string*>();
    if (text != nullptr && text->empty()) return;  // "not yet", as NodeSampler writes it
    Result<int64_t> time = text == nullptr ? Error{} : ParseTime(*text);
    if (!time.ok()) return FailAt(Path{&path_, key}, *value, "give a time such as 2026-11-30T13:00:00Z");
    out = *time;
  }

  void Seconds(std::string_view key, int64_t& out) {
    if (const Json* value = Find(key)) ReadSeconds(*value, Path{&path_, key}, out);
  }

  void Cpu(std::string_view key, int64_t& out, int64_t least) {
    ReadAmount(key, out, least, ParseCpu, "give a number of cores such as 100m or 0.5");
  }
  void Memory(std::string_view key, int64_t& out, int64_t least) {
    ReadAmount(key, out, least, ParseMemory, "give an amount of memory such as 256Mi");
  }
  void RoundedMemory(std::string_view key, int64_t& out) { Memory(key, out, 0); }

  template <typename E>
  void Enum(std::string_view key, E& out, const auto& names, bool required = false) {
    const Json* value = FindOrFail(key, required, "one of " + Join(names));
    if (value == nullptr) return;
    const std::string* text = value->get_ptr<const std::string*>();
    auto it = text == nullptr ? names.end() : std::find(names.begin(), names.end(), *text);
    if (it == names.end()) return FailAt(Path{&path_, key}, *value, "give one of " + Join(names));
    out = static_cast<E>(it - names.begin());
  }
  template <typename E>
  void OptionalEnum(std::string_view key, std::optional<E>& out, const auto& names) {
    if (Has(key)) Enum(key, out.emplace(), names);
  }
  // One of the names, kept as text.
  void Choice(std::string_view key, std::string& out, const auto& names) {
    std::string want = "give one of " + Join(names);
    const Json* value = FindOrFail(key, kRequired, want);
    if (value == nullptr) return;
    const std::string* text = value->get_ptr<const std::string*>();
    if (text == nullptr || std::find(names.begin(), names.end(), *text) == names.end()) return FailAt(Path{&path_, key}, *value, want);
    out = *text;
  }

  template <typename T>
  void Object(std::string_view key, T& out, bool required = false) {
    if (FindOrFail(key, required, "an object") == nullptr) return;
    With(key, [&](Reader& reader) { Visit(reader, out); });
  }
  template <typename T>
  void OptionalObject(std::string_view key, std::optional<T>& out) {
    With(key, [&](Reader& reader) { Visit(reader, out.emplace()); });
  }
  void With(std::string_view key, auto visit) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    Path path{&path_, key};
    Reader reader(*value, path, error_);
    if (!error_) visit(reader);
  }

  template <typename T>
  void List(std::string_view key, std::vector<T>& out, size_t most, size_t least = 0) {
    const Json* value = Find(key);
    if (value == nullptr || !CheckList(key, *value, least, most)) return;
    out.assign(value->size(), T{});
    Path path{&path_, key};
    for (size_t i = 0; i < out.size() && !error_; ++i) {
      Path at{&path, {}, i};
      Reader reader((*value)[i], at, error_);
      if (!error_) Visit(reader, out[i]);
    }
  }

  void TextMap(std::string_view key, std::map<std::string, std::string>& out, size_t most, TextRule key_rule, TextRule value_rule) {
    Entries(key, most, key_rule, [&](const std::string& name, const Json& value, const Path& at) {
      ReadText(value, at, value_rule, out[name]);
    });
  }
  void IntMap(std::string_view key, std::map<std::string, int64_t>& out, size_t most, TextRule key_rule) {
    Entries(key, most, key_rule, [&](const std::string& name, const Json& value, const Path& at) {
      ReadInt(value, at, 0, kMaxCount, out[name]);
    });
  }
  void SecondsMap(std::string_view key, std::map<std::string, int64_t>& out, size_t most, TextRule key_rule) {
    Entries(key, most, key_rule,
            [&](const std::string& name, const Json& value, const Path& at) { ReadSeconds(value, at, out[name]); });
  }
  template <typename T>
  void ObjectMap(std::string_view key, std::map<std::string, T>& out, size_t most, TextRule key_rule) {
    Entries(key, most, key_rule, [&](const std::string& name, const Json& value, const Path& at) {
      Reader reader(value, at, error_);
      if (!error_) Visit(reader, out[name]);
    });
  }

  void Fail(std::string found, std::string want) {
    if (!error_) error_ = Error{ErrorCode::kInvalid, path_.Text() + ": found " + found + "; " + want};
  }

 private:
  const Json* Find(std::string_view key) const {
    if (error_ || !object_.is_object()) return nullptr;
    auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  const Json* FindOrFail(std::string_view key, bool required, const std::string& want) {
    const Json* value = Find(key);
    if (value == nullptr && required && !error_) {
      error_ = Error{ErrorCode::kInvalid, Path{&path_, key}.Text() + ": found nothing; " + (want.starts_with("give") ? want : "give " + want)};
    }
    return value;
  }

  void FailAt(const Path& path, const Json& value, std::string want) {
    if (error_) return;
    std::string at = path.Text();
    error_ = Error{ErrorCode::kInvalid, (at.empty() ? "the document" : at) + ": found " + Show(value) + "; " + want};
  }

  bool CheckList(std::string_view key, const Json& value, size_t least, size_t most) {
    if (value.is_array() && value.size() >= least && value.size() <= most) return true;
    FailAt(Path{&path_, key}, value, "give a list of " + std::to_string(least) + " to " + std::to_string(most));
    return false;
  }

  void ReadText(const Json& value, const Path& path, TextRule rule, std::string& out) {
    const std::string* text = value.get_ptr<const std::string*>();
    if (text == nullptr || Characters(*text) > rule.max || !HasForm(*text, rule.form)) return FailAt(path, value, "give " + Describe(rule));
    out = *text;
  }

  bool ReadInt(const Json& value, const Path& path, int64_t least, int64_t most, int64_t& out) {
    bool fits = value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
    if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most) {
      FailAt(path, value, "give a whole number from " + std::to_string(least) + " to " + std::to_string(most));
      return false;
    }
    out = value.get<int64_t>();
    return true;
  }

  void ReadSeconds(const Json& value, const Path& path, int64_t& out) {
    const std::string* text = value.get_ptr<const std::string*>();
    std::optional<int64_t> ns = text == nullptr ? std::nullopt : ParseSeconds(*text);
    if (!ns) return FailAt(path, value, "give seconds such as 61.2s");
    out = *ns;
  }

  void ReadAmount(std::string_view key, int64_t& out, int64_t least, std::optional<int64_t> (*parse)(std::string_view),
                  std::string_view want) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    std::optional<int64_t> amount;
    if (const std::string* text = value->get_ptr<const std::string*>()) {
      amount = parse(*text);
    } else if (value->is_number_integer()) {
      amount = parse(value->dump());
    }
    if (!amount || *amount < least) return FailAt(Path{&path_, key}, *value, std::string(want));
    out = *amount;
  }

  void Entries(std::string_view key, size_t most, TextRule key_rule, auto read) {
    const Json* value = Find(key);
    if (value == nullptr) return;
    Path path{&path_, key};
    if (!value->is_object()) return FailAt(path, *value, "give an object");
    if (value->size() > most) {
      if (!error_) {
        error_ = Error{ErrorCode::kInvalid, path.Text() + ": found " + std::to_string(value->size()) + " entries; give at most " +
                                                std::to_string(most)};
      }
      return;
    }
    for (auto it = value->begin(); it != value->end() && !error_; ++it) {
      Path at{&path, it.key()};
      std::string name;
      ReadText(Json(it.key()), at, key_rule, name);
      if (!error_) read(name, it.value(), at);
    }
  }

  const Json& object_;
  const Path& path_;
  std::optional<Error>& error_;
};

// ---- Writing ---------------------------------------------------------------------------------------------------------------

// An object being written. Empty texts, lists and maps and times that are not set are left out.
class Writer {
 public:
  static constexpr bool kReading = false;
  struct Options {
    bool cut = false;       // make texts safe, cut texts and lists to their bounds
    bool zeros = false;     // write numbers that are 0
    bool defaults = false;  // write objects that are as by default
  };

  Writer(Json& object, Options options) : object_(object), options_(options) { object_ = Json::object(); }

  void Text(std::string_view key, const std::string& value, TextRule rule, bool = false) {
    if (!value.empty()) Put(key, Clean(value, rule));
  }
  void Texts(std::string_view key, const std::vector<std::string>& values, size_t most, TextRule rule, size_t = 0) {
    if (values.empty()) return;
    Json list = Json::array();
    for (const std::string& value : values) {
      if (options_.cut && list.size() == most) break;
      list.push_back(Clean(value, rule));
    }
    Put(key, std::move(list));
  }
  void Int(std::string_view key, int64_t value, int64_t, int64_t, bool = false) {
    if (value != 0 || options_.zeros) Put(key, value);
  }
  void OptionalInt(std::string_view key, const std::optional<int>& value, int64_t, int64_t) {
    if (value) Put(key, *value);
  }
  void Bool(std::string_view key, bool value) {
    if (value) Put(key, true);
  }
  void IntText(std::string_view key, int64_t value) {
    if (value != 0) Put(key, std::to_string(value));
  }
  void Time(std::string_view key, int64_t value) {
    if (value != 0) Put(key, FormatMicroTime(value));
  }
  void Seconds(std::string_view key, int64_t value) { Put(key, FormatSeconds(value)); }
  void Cpu(std::string_view key, int64_t value, int64_t) { Put(key, FormatCpu(value)); }
  void Memory(std::string_view key, int64_t value, int64_t) { Put(key, FormatMemory(value)); }
  void RoundedMemory(std::string_view key, int64_t value) { Put(key, FormatMemoryRounded(value)); }
  template <typename E>
  void Enum(std::string_view key, E value, const auto& names, bool = false) {
    Put(key, names[static_cast<size_t>(value)]);
  }
  template <typename E>
  void OptionalEnum(std::string_view key, const std::optional<E>& value, const auto& names) {
    if (value) Enum(key, *value, names);
  }
  void Choice(std::string_view key, const std::string& value, const auto&) { Put(key, value); }

  template <typename T>
  void Object(std::string_view key, T& value, bool = false) {
    if (options_.defaults || !(value == T{})) Put(key, Written(value));
  }
  template <typename T>
  void OptionalObject(std::string_view key, std::optional<T>& value) {
    if (value) Put(key, Written(*value));
  }
  void With(std::string_view key, auto visit) {
    Json child;
    Writer writer(child, options_);
    visit(writer);
    Put(key, std::move(child));
  }
  template <typename T>
  void List(std::string_view key, std::vector<T>& values, size_t most, size_t = 0) {
    if (values.empty()) return;
    Json list = Json::array();
    for (T& value : values) {
      if (options_.cut && list.size() == most) break;
      list.push_back(Written(value));
    }
    Put(key, std::move(list));
  }
  void TextMap(std::string_view key, const std::map<std::string, std::string>& values, size_t, TextRule, TextRule) {
    if (!values.empty()) Put(key, values);
  }
  void IntMap(std::string_view key, const std::map<std::string, int64_t>& values, size_t, TextRule) {
    if (!values.empty()) Put(key, values);
  }
  void SecondsMap(std::string_view key, const std::map<std::string, int64_t>& values, size_t, TextRule) {
    if (values.empty()) return;
    Json map = Json::object();
    for (const auto& [name, ns] : values) map[name] = FormatSeconds(ns);
    Put(key, std::move(map));
  }
  template <typename T>
  void ObjectMap(std::string_view key, std::map<std::string, T>& values, size_t, TextRule) {
    if (values.empty()) return;
    Json map = Json::object();
    for (auto& [name, value] : values) map[name] = Written(value);
    Put(key, std::move(map));
  }

  void Put(std::string_view key, Json value) { object_[std::string(key)] = std::move(value); }

 private:
  std::string Clean(const std::string& value, const TextRule& rule) const {
    return options_.cut ? SanitizeName(value, rule.max) : value;
  }
  template <typename T>
  Json Written(T& value) {
    Json child;
    Writer writer(child, options_);
    Visit(writer, value);
    return child;
  }

  Json& object_;
  Options options_;
};

// ---- The kinds: each field once, for both directions -----------------------------------------------------------------------

template <typename A>
void Visit(A& a, ObjectMeta& x) {
  a.Text("name", x.name, TextRule{253});
  a.Text("namespace", x.namespace_name, TextRule{63});
  a.Text("uid", x.uid, TextRule{128});
  a.Text("resourceVersion", x.resource_version, TextRule{64});
  if constexpr (A::kReading) {
    a.Int("generation", x.generation, 0, kMaxCount);
    a.Time("creationTimestamp", x.creation_time);
    a.Time("deletionTimestamp", x.deletion_time);
  }
}

template <typename A>
void Visit(A& a, Condition& x) {
  static constexpr std::array<std::string_view, 3> kStatusNames = {"True", "False", "Unknown"};
  a.Text("type", x.type, kWord, kRequired);
  a.Choice("status", x.status, kStatusNames);
  a.Text("reason", x.reason, kWord);
  a.Text("message", x.message, kMessage);
  a.Int("observedGeneration", x.observed_generation, 0, kMaxCount);
  a.Time("lastTransitionTime", x.last_transition_time);
}

template <typename A>
void Visit(A& a, LabelRequirement& x) {
  a.Text("key", x.key, kLabelKey, kRequired);
  a.Choice("operator", x.op, kOperators);
  a.Texts("values", x.values, 32, kLabelValue);
}

template <typename A>
void Visit(A& a, LabelSelector& x) {
  a.TextMap("matchLabels", x.match_labels, kMaxLabels, kLabelKey, kLabelValue);
  a.List("matchExpressions", x.match_expressions, 16);
}

template <typename A>
void Visit(A& a, WorkloadRef& x) {
  a.Choice("kind", x.kind, kWorkloadKinds);
  a.Text("name", x.name, kDnsSubdomain, kRequired);
}

template <typename A>
void Visit(A& a, Target& x) {
  a.Text("podName", x.pod_name, kDnsSubdomain);
  a.OptionalObject("podSelector", x.pod_selector);
  a.OptionalObject("workloadRef", x.workload_ref);
  a.Texts("containerNames", x.container_names, kMaxContainers, kDnsLabel);
  a.Int("maxPods", x.max_pods, 1, 500);
  a.Int("waitSeconds", x.wait_seconds, 0, kMaxDurationSeconds);
}

template <typename A>
void Visit(A& a, Budget& x) {
  a.Cpu("cpu", x.cpu_millis, 1);
  a.Memory("memory", x.memory_bytes, 1);
  a.Enum("onExceed", x.on_exceed, kOnExceedNames);
}

template <typename A>
void Visit(A& a, Profile& x) {
  a.Text("name", x.name, kDnsLabel, kRequired);
  if constexpr (A::kReading) {
    std::vector<std::string_view> found;
    for (std::string_view name : kProfileKindNames) {
      if (a.Has(name)) found.push_back(name);
    }
    if (found.size() != 1) {
      return a.Fail(found.empty() ? "no kind of profile" : Join(found, " and "),
                    "give exactly one of " + Join(kProfileKindNames) + "; one that is missing here needs a newer Borescope");
    }
    x.kind = *ProfileKindFromName(found[0]);
    x.frequency_hertz = 0;
  }
  a.With(ProfileKindName(x.kind), [&](A& kind) {
    switch (x.kind) {
      case ProfileKind::kCpu:
      case ProfileKind::kWall:
        if constexpr (A::kReading) x.frequency_hertz = DefaultFrequencyHertz(x.kind);
        kind.Int("frequencyHertz", x.frequency_hertz, 1, kMaxFrequencyHertz);
        break;
      case ProfileKind::kPerfEvent:
        if constexpr (A::kReading) x.sample_period = 100003;
        kind.Text("event", x.event, TextRule{64, Form::kEvent}, kRequired);
        kind.Int("samplePeriod", x.sample_period, 1000, 1'000'000'000'000);
        break;
      default:
        break;
    }
  });
}

template <typename A>
void Visit(A& a, ProfilingSessionSpec& x) {
  a.Object("target", x.target);
  a.Int("durationSeconds", x.duration_seconds, 1, kMaxDurationSeconds);
  a.Int("lookbackSeconds", x.lookback_seconds, 0, kMaxDurationSeconds);
  a.List("profiles", x.profiles, kMaxProfiles, 1);
  a.Enum("kernelStacks", x.kernel_stacks, kKernelStacksNames);
  a.Object("budget", x.budget);
  a.Texts("podLabels", x.pod_labels, kMaxLabels, kLabelKey);
  a.Texts("programLabels", x.program_labels, kMaxLabels, kLabelKey);
  a.TextMap("labels", x.labels, kMaxLabels, kLabelName, kProfileLabelValue);
  a.Texts("sinkNames", x.sink_names, kMaxSinks, kDnsLabel, 1);
  a.Int("publishDeadlineSeconds", x.publish_deadline_seconds, 1, kMaxPublishDeadlineSeconds);
  a.OptionalInt("ttlSecondsAfterFinished", x.ttl_seconds_after_finished, 0, 365 * kDaySeconds);
  a.Enum("desiredState", x.desired_state, kDesiredStateNames);
}

template <typename A>
void Visit(A& a, TargetCounts& x) {
  a.Int("matched", x.matched, 0, kMaxCount);
  a.Int("selected", x.selected, 0, kMaxCount);
  a.Int("sampling", x.sampling, 0, kMaxCount);
  a.Int("succeeded", x.succeeded, 0, kMaxCount);
  a.Int("failed", x.failed, 0, kMaxCount);
  if constexpr (!A::kReading) a.Put("display", std::to_string(x.sampling + x.succeeded) + "/" + std::to_string(x.selected));
}

template <typename A>
void Visit(A& a, SampleCounts& x) {
  a.Int("collected", x.collected, 0, kMaxCount);
  a.Int("lost", x.lost, 0, kMaxCount);
  a.Int("truncated", x.truncated, 0, kMaxCount);
  a.Int("unsymbolized", x.unsymbolized, 0, kMaxCount);
}

template <typename A>
void Visit(A& a, TopFunction& x) {
  a.Text("profile", x.profile, TextRule{63});
  a.Text("function", x.function, kName);
  a.Text("location", x.location, kName);
  a.Text("language", x.language, kWord);
  a.Int("totalPerMille", x.total_per_mille, 0, 1000);
  a.Int("ownPerMille", x.own_per_mille, 0, 1000);
  a.Cpu("cpu", x.cpu_millis, 0);
  a.Int("errorPerMille", x.error_per_mille, 0, 1000);
  if constexpr (!A::kReading) a.Put("display", TopDisplay(x));
}

template <typename A>
void Visit(A& a, SessionResult& x) {
  a.Text("sink", x.sink, TextRule{63});
  a.Text("profile", x.profile, TextRule{63});
  a.Text("state", x.state, kWord);
  a.Text("message", x.message, kMessage);
  a.Text("query", x.query, kUrl);
  a.Text("url", x.url, kUrl);
}

template <typename A>
void Visit(A& a, TargetDetail& x) {
  a.Text("pod", x.pod, TextRule{253});
  a.Text("node", x.node, TextRule{253});
  a.Text("container", x.container, TextRule{63});
  a.Text("language", x.language, kWord);
  a.Text("state", x.state, kWord);
  a.Text("reason", x.reason, kWord);
  a.Text("message", x.message, TextRule{256});
}

template <typename A>
void Visit(A& a, ProfilingSessionStatus& x) {
  a.OptionalEnum("phase", x.phase, kPhaseNames);
  a.List("conditions", x.conditions, kMaxConditions);
  a.Int("observedGeneration", x.observed_generation, 0, kMaxCount);
  a.Time("startTime", x.start_time);
  a.Time("endTime", x.end_time);
  a.Time("completionTime", x.completion_time);
  a.Object("targets", x.targets);
  // Seconds and cores as people write them; NodeSamplerReport has whole numbers.
  auto cpu = [&](A& c) {
    c.Seconds("used", x.cpu.used_ns);
    c.Seconds("sampled", x.cpu.sampled_ns);
    c.Seconds("lost", x.cpu.lost_ns);
    c.Seconds("unexplained", x.cpu.unexplained_ns);
  };
  auto overhead = [&](A& o) {
    o.Cpu("peakCPU", x.overhead.peak_cpu_millis, 0);
    o.Cpu("averageCPU", x.overhead.average_cpu_millis, 0);
    o.RoundedMemory("peakMemory", x.overhead.peak_memory_bytes);
    o.Cpu("tick", x.overhead.tick_millis, 0);
  };
  if (A::kReading || x.cpu != CpuAccount{}) a.With("cpu", cpu);
  a.Object("samples", x.samples);
  a.SecondsMap("lost", x.lost_ns, kMaxLossRows, kWord);
  a.IntMap("shares", x.shares, kMaxLabels, kWord);
  if (A::kReading || x.overhead != Overhead{}) a.With("overhead", overhead);
  a.List("top", x.top, kMaxTopPerProfile * kMaxProfiles);
  a.List("results", x.results, kMaxSinks * kMaxProfiles);
  a.List("targetDetails", x.target_details, kMaxTargetDetails);
}

template <typename A>
void Visit(A& a, PodContainer& x) {
  a.Text("name", x.name, TextRule{63}, kRequired);
  a.Text("image", x.image, TextRule{1024});
  a.Text("version", x.version, TextRule{128});
}

template <typename A>
void Visit(A& a, NodePod& x) {
  a.Text("uid", x.uid, kUid, kRequired);
  a.Text("cgroupUID", x.cgroup_uid, kUid);
  a.Text("namespace", x.namespace_name, TextRule{63}, kRequired);
  a.Text("name", x.name, TextRule{253}, kRequired);
  a.TextMap("labels", x.labels, 32, TextRule{63}, kProfileLabelValue);
  a.TextMap("podLabels", x.pod_labels, 64, TextRule{317}, TextRule{63});
  a.List("containers", x.containers, kMaxContainers);
}

template <typename A>
void Visit(A& a, SessionRef& x) {
  a.Text("namespace", x.namespace_name, TextRule{63}, kRequired);
  a.Text("name", x.name, TextRule{63}, kRequired);
  a.Text("uid", x.uid, kUid, kRequired);
}

template <typename A>
void Visit(A& a, JobProfile& x) {
  a.Text("name", x.name, TextRule{63}, kRequired);
  a.Text("kind", x.kind, kWord, kRequired);
  a.Int("frequencyHertz", x.frequency_hertz, 0, kMaxFrequencyHertz);
}

template <typename A>
void Visit(A& a, Job& x) {
  a.Text("id", x.id, TextRule{kMaxJobIdBytes}, kRequired);
  a.Object("session", x.session, kRequired);
  a.Texts("podUIDs", x.pod_uids, kMaxPodsPerNode, kUid);
  a.Texts("containerNames", x.container_names, kMaxContainers, TextRule{63});
  a.List("profiles", x.profiles, kMaxProfiles, 1);
  a.Enum("kernelStacks", x.kernel_stacks, kKernelStacksNames);
  a.Texts("podLabels", x.pod_labels, kMaxLabels, TextRule{317});
  a.TextMap("labels", x.labels, kMaxLabels, TextRule{63}, kProfileLabelValue);
  a.Texts("sinkNames", x.sink_names, kMaxSinks, TextRule{63});
  a.Time("startTime", x.start_time);
  a.Time("endTime", x.end_time);
  a.Int("durationSeconds", x.duration_seconds, 0, kMaxDurationSeconds);
  a.Time("waitUntil", x.wait_until);
  a.Int("publishDeadlineSeconds", x.publish_deadline_seconds, 0, kMaxPublishDeadlineSeconds);
  a.With("budget", [&](A& budget) {
    budget.Int("cpuMillis", x.budget.cpu_millis, 1, kMaxCount);
    budget.Int("memoryBytes", x.budget.memory_bytes, 1, kMaxCount);
    budget.Enum("onExceed", x.budget.on_exceed, kOnExceedNames);
  });
  a.Bool("stop", x.stop);
}

template <typename A>
void Visit(A& a, NodeSamplerSpec& x) {
  a.List("pods", x.pods, kMaxPodsPerNode);
  a.List("jobs", x.jobs, kMaxJobsPerNode);
}

template <typename A>
void Visit(A& a, KernelFinding& x) {
  static constexpr std::array<std::string_view, 3> kActionNames = {"Refused", "Overridden", "Warned"};
  a.Text("name", x.name, kWord, kRequired);
  a.Choice("action", x.action, kActionNames);
  a.Text("message", x.message, TextRule{512});
}

template <typename A>
void Visit(A& a, NodeSamplerStatus& x) {
  a.Text("samplerVersion", x.sampler_version, kWord);
  a.Text("kernelVersion", x.kernel_version, TextRule{128});
  a.Text("bootID", x.boot_id, kWord);
  a.Text("incarnation", x.incarnation, kWord);
  a.Text("architecture", x.architecture, kWord);
  a.Int("cpus", x.cpus, 0, 65536);
  a.Texts("kinds", x.kinds, 32, kWord);
  a.Texts("sinkNames", x.sink_names, 64, TextRule{63});
  a.Int("clockOffsetMillis", x.clock_offset_millis, INT64_MIN, INT64_MAX);
  a.List("kernelFindings", x.kernel_findings, 32);
  a.Int("observedGeneration", x.observed_generation, 0, kMaxCount);
  a.List("conditions", x.conditions, kMaxConditions);
}

template <typename A>
void Visit(A& a, Windows& x) {
  a.Int("stored", x.stored, 0, kMaxCount);
  a.Int("pending", x.pending, 0, kMaxCount);
  a.Time("lastStoredStart", x.last_stored_start);
}

template <typename A>
void Visit(A& a, CpuAccount& x) {
  a.Int("usedNs", x.used_ns, 0, kMaxCount);
  a.Int("sampledNs", x.sampled_ns, 0, kMaxCount);
  a.Int("lostNs", x.lost_ns, 0, kMaxCount);
  a.Int("unexplainedNs", x.unexplained_ns, INT64_MIN, INT64_MAX);
}

template <typename A>
void Visit(A& a, Overhead& x) {
  a.Int("peakCPUMillis", x.peak_cpu_millis, 0, kMaxCount);
  a.Int("averageCPUMillis", x.average_cpu_millis, 0, kMaxCount);
  a.Int("peakMemoryBytes", x.peak_memory_bytes, 0, kMaxCount);
  a.Int("tickMillis", x.tick_millis, 0, kMaxCount);
}

template <typename A>
void Visit(A& a, ReportedFunction& x) {
  a.Text("profile", x.profile, TextRule{63});
  a.Text("function", x.function, kName);
  a.Text("location", x.location, kName);
  a.Text("language", x.language, kWord);
  a.Int("totalNs", x.total_ns, 0, kMaxCount);
  a.Int("ownNs", x.own_ns, 0, kMaxCount);
}

template <typename A>
void Visit(A& a, ReportedContainer& x) {
  a.Text("podUID", x.pod_uid, TextRule{63});
  a.Text("pod", x.pod, TextRule{253});
  a.Text("container", x.container, TextRule{63});
  a.Text("language", x.language, kWord);
  a.Text("state", x.state, kWord);
  a.Text("reason", x.reason, kWord);
  a.Text("message", x.message, TextRule{256});
  a.Int("cpuNs", x.cpu_ns, 0, kMaxCount);
  a.Int("samples", x.samples, 0, kMaxCount);
}

template <typename A>
void Visit(A& a, ReportedSink& x) {
  a.Text("name", x.name, TextRule{63});
  a.Text("state", x.state, kWord);
  a.Text("message", x.message, kMessage);
  a.Text("url", x.url, kUrl);
  a.Int("stored", x.stored, 0, kMaxCount);
  a.Int("pending", x.pending, 0, kMaxCount);
}

template <typename A>
void Visit(A& a, JobReport& x) {
  a.Enum("state", x.state, kJobStateNames, kRequired);
  a.Text("reason", x.reason, kWord);
  a.Text("message", x.message, kMessage);
  a.Time("startTime", x.start_time);
  a.Time("endTime", x.end_time);
  a.Time("firstContainerTime", x.first_container_time);
  a.Text("bootID", x.boot_id, kWord);
  a.Text("incarnation", x.incarnation, kWord);
  a.IntText("deadlineBootNs", x.deadline_boot_ns);
  a.Int("cpuAtArmNs", x.cpu_at_arm_ns, 0, kMaxCount);
  a.Int("cpuAtLastWindowNs", x.cpu_at_last_window_ns, 0, kMaxCount);
  a.Object("windows", x.windows);
  a.Object("cpu", x.cpu);
  a.Object("samples", x.samples);
  a.IntMap("lost", x.lost_ns, kMaxLossRows, kWord);
  a.Object("overhead", x.overhead);
  a.List("top", x.top, kMaxTopPerProfile * kMaxProfiles);
  a.Bool("topTruncated", x.top_truncated);
  a.IntMap("sums", x.sums, kMaxProfiles, TextRule{63});
  a.IntMap("effectiveSamples", x.effective_samples, kMaxProfiles, TextRule{63});
  a.List("containers", x.containers, 512);
  a.List("sinks", x.sinks, kMaxSinks);
}

template <typename A>
void Visit(A& a, NodeSamplerReportStatus& x) {
  a.Text("incarnation", x.incarnation, kWord);
  a.Text("bootID", x.boot_id, kWord);
  a.ObjectMap("jobs", x.jobs, kMaxJobsPerNode, TextRule{kMaxJobIdBytes});
}

constexpr Writer::Options kSpecOptions{.zeros = true, .defaults = true};
constexpr Writer::Options kStatusOptions{.cut = true, .zeros = true};
constexpr Writer::Options kNodeSpecOptions{};
constexpr Writer::Options kNodeStatusOptions{.cut = true};

template <typename T>
Json Write(const T& value, Writer::Options options) {
  Json json;
  Writer writer(json, options);
  Visit(writer, const_cast<T&>(value));  // one Visit for both directions; a Writer changes nothing
  return json;
}

template <typename T>
Result<T> Parse(const Json& object, std::string_view kind, auto visit) {
  std::optional<Error> error;
  Path root;
  T value;
  Reader reader(object, root, error);
  std::string found = std::string(kind);
  reader.Text("kind", found, kWord);
  if (!error && found != kind) {
    error = Error{ErrorCode::kInvalid, "kind: found '" + SanitizeName(found, 80) + "'; give " + std::string(kind)};
  }
  std::string version = std::string(kApiVersion);
  reader.Text("apiVersion", version, kName);
  if (!error && version != kApiVersion) {
    error = Error{ErrorCode::kInvalid, "apiVersion: found '" + SanitizeName(version, 80) + "'; give " + std::string(kApiVersion)};
  }
  reader.Object("metadata", value.metadata);
  if (!error) visit(reader, value);
  if (error) return *std::move(error);
  return value;
}

Json Envelope(std::string_view kind, const ObjectMeta& metadata) {
  return Json{{"apiVersion", kApiVersion}, {"kind", kind}, {"metadata", Write(metadata, kSpecOptions)}};
}

Error Refusal(std::string_view field, std::string found, std::string next) {
  return {ErrorCode::kInvalid, std::string(field) + ": found " + std::move(found) + "; " + std::move(next)};
}

}  // namespace

Result<ProfilingSession> ParseProfilingSession(const Json& object) {
  return Parse<ProfilingSession>(object, kProfilingSessionKind, [](Reader& reader, ProfilingSession& session) {
    if (session.metadata.name.size() > kMaxSessionNameBytes) {
      return reader.Fail("metadata.name of " + std::to_string(session.metadata.name.size()) + " characters",
                         "give one of at most 63: it becomes a label of every profile");
    }
    reader.Object("spec", session.spec);
    reader.Object("status", session.status);
  });
}

Result<NodeSampler> ParseNodeSampler(const Json& object) {
  return Parse<NodeSampler>(object, kNodeSamplerKind, [](Reader& reader, NodeSampler& sampler) {
    reader.Object("spec", sampler.spec);
    reader.Object("status", sampler.status);
  });
}

Result<NodeSamplerReport> ParseNodeSamplerReport(const Json& object) {
  return Parse<NodeSamplerReport>(object, kNodeSamplerReportKind,
                                  [](Reader& reader, NodeSamplerReport& report) { reader.Object("status", report.status); });
}

Status ValidateWithoutTarget(const ProfilingSessionSpec& spec) {
  std::set<std::string_view> names;
  std::set<ProfileKind> kinds;
  for (const Profile& profile : spec.profiles) {
    if (!names.insert(profile.name).second) {
      return Refusal("spec.profiles", "two named '" + profile.name + "'", "give each profile a name of its own");
    }
    if (!kinds.insert(profile.kind).second) {
      return Refusal("spec.profiles", "two of kind '" + std::string(ProfileKindName(profile.kind)) + "'",
                     "keep one of each kind; another rate needs another session");
    }
  }
  auto refuse_reserved = [](std::string_view field, std::string_view key) {
    return Refusal(field, "the reserved key '" + std::string(key) + "'",
                   "choose another: " + ReservedLabelList() + " and what begins with '__' say where a profile comes from");
  };
  for (const auto& [key, value] : spec.labels) {
    if (ReservedLabel(key)) return refuse_reserved("spec.labels", key);
  }
  for (const std::string& key : spec.pod_labels) {
    if (ReservedLabel(key)) return refuse_reserved("spec.podLabels", key);
  }
  for (const std::string& key : spec.program_labels) {
    if (ReservedLabel(key)) return refuse_reserved("spec.programLabels", key);
  }
  return OkStatus();
}

Status Validate(const ProfilingSessionSpec& spec) {
  const Target& target = spec.target;
  std::vector<std::string_view> found;
  if (!target.pod_name.empty()) found.push_back("podName");
  if (target.pod_selector) found.push_back("podSelector");
  if (target.workload_ref) found.push_back("workloadRef");
  if (found.size() != 1) {
    return Refusal("spec.target", found.empty() ? "none of podName, podSelector, workloadRef" : Join(found, " and "),
                   "give exactly one of podName, podSelector, workloadRef");
  }
  if (target.pod_selector) {
    if (target.pod_selector->match_labels.empty() && target.pod_selector->match_expressions.empty()) {
      return Refusal("spec.target.podSelector", "an empty selector", "give matchLabels or matchExpressions: it would select every pod");
    }
    for (const LabelRequirement& requirement : target.pod_selector->match_expressions) {
      bool needs_values = requirement.op == "In" || requirement.op == "NotIn";
      if (needs_values == requirement.values.empty()) {
        return Refusal("spec.target.podSelector.matchExpressions",
                       "operator " + requirement.op + " on '" + requirement.key + "' with " + std::to_string(requirement.values.size()) + " values",
                       needs_values ? "give values" : "remove values");
      }
    }
  }
  return ValidateWithoutTarget(spec);
}

Json ToJson(const ProfilingSession& session) {
  Json json = Envelope(kProfilingSessionKind, session.metadata);
  json["spec"] = Write(session.spec, kSpecOptions);
  if (!(session.status == ProfilingSessionStatus{})) json["status"] = Write(session.status, kStatusOptions);
  return json;
}

Json ToJson(const NodeSampler& sampler) {
  Json json = Envelope(kNodeSamplerKind, sampler.metadata);
  json["spec"] = ToJson(sampler.spec);
  if (!(sampler.status == NodeSamplerStatus{})) json["status"] = Write(sampler.status, kNodeStatusOptions);
  return json;
}

Json ToJson(const NodeSamplerReport& report) {
  Json json = Envelope(kNodeSamplerReportKind, report.metadata);
  json["status"] = Write(report.status, kNodeStatusOptions);
  return json;
}

Json ToJson(const NodeSamplerSpec& spec) { return Write(spec, kNodeSpecOptions); }
Json ToJson(const JobReport& report) { return Write(report, kNodeStatusOptions); }

Json NewNodeObject(std::string_view kind, std::string_view node, std::string_view node_uid) {
  Json owner = {{"apiVersion", "v1"}, {"kind", "Node"}, {"name", node}, {"uid", node_uid}};
  return Json{{"apiVersion", kApiVersion}, {"kind", kind}, {"metadata", {{"name", node}, {"ownerReferences", Json::array({owner})}}}};
}

Json SpecPatch(const NodeSamplerSpec& spec, std::string_view resource_version) {
  Json body = {{"pods", Json::array()}, {"jobs", Json::array()}};
  body.update(ToJson(spec));
  return Json{{"metadata", {{"resourceVersion", resource_version}}}, {"spec", std::move(body)}};
}

Json ReportPatch(const NodeSamplerReportStatus& before, const NodeSamplerReportStatus& after) {
  Json patch = MergePatch(Write(before, kNodeStatusOptions), Write(after, kNodeStatusOptions));
  return patch.empty() ? patch : Json{{"status", std::move(patch)}};
}

Json NodeSamplerStatusPatch(const NodeSamplerStatus& before, const NodeSamplerStatus& after) {
  Json patch = MergePatch(Write(before, kNodeStatusOptions), Write(after, kNodeStatusOptions));
  return patch.empty() ? patch : Json{{"status", std::move(patch)}};
}

Json SessionStatusPatch(const ObjectMeta& session, const ProfilingSessionStatus& before, const ProfilingSessionStatus& after) {
  Json patch = MergePatch(Write(before, kStatusOptions), Write(after, kStatusOptions));
  if (patch.empty()) return patch;
  return Json{{"metadata", {{"resourceVersion", session.resource_version}}}, {"status", std::move(patch)}};
}

Json MergePatch(const Json& from, const Json& to) {
  Json patch = Json::object();
  for (auto it = from.begin(); it != from.end(); ++it) {
    if (!to.contains(it.key())) patch[it.key()] = nullptr;
  }
  for (auto it = to.begin(); it != to.end(); ++it) {
    auto old = from.find(it.key());
    if (old == from.end()) {
      patch[it.key()] = it.value();
    } else if (old->is_object() && it.value().is_object()) {
      Json child = MergePatch(*old, it.value());
      if (!child.empty()) patch[it.key()] = std::move(child);
    } else if (*old != it.value()) {
      patch[it.key()] = it.value();
    }
  }
  return patch;
}

}  // namespace borescope::api
