// SPDX-License-Identifier: Apache-2.0
#include "common/kube/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/strings.h"

namespace borescope::kube {
namespace {

using nlohmann::json;

bool IsOneOf(std::string_view s, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), s) != words.end();
}

// What YAML 1.1 readers (kubectl) and 1.2 readers take for different things.
bool IsAmbiguous(std::string_view s) {
  if (IsOneOf(s, {"y", "Y", "n", "N", "yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF", ".inf", ".Inf",
                  ".INF", "-.inf", "-.Inf", "-.INF", "+.inf", "+.Inf", "+.INF", ".nan", ".NaN", ".NAN"})) {
    return true;
  }
  if (!s.empty() && (s[0] == '-' || s[0] == '+')) s.remove_prefix(1);
  if (s.size() < 2 || s[0] < '0' || s[0] > '9') return false;
  bool prefixed = s[0] == '0' && s.find_first_not_of("0123456789abcdefABCDEFxob_", 1) == std::string_view::npos &&
                  s.find('.') == std::string_view::npos;
  bool grouped = s.find('_') != std::string_view::npos && s.find_first_not_of("0123456789_.") == std::string_view::npos;
  // "0" alone and "0e5" are plain numbers; 0644, 0x1f, 0o17, 0b1, 1_000 are not the same to everybody.
  return grouped || (prefixed && !IsOneOf(s.substr(0, 2), {"0e", "0E"}));
}

bool LooksLikeNumber(std::string_view s, bool* is_float) {
  *is_float = false;
  size_t i = 0, digits = 0;
  auto run = [&] {
    size_t n = 0;
    while (i < s.size() && s[i] >= '0' && s[i] <= '9') ++i, ++n;
    return n;
  };
  if (i < s.size() && (s[i] == '-' || s[i] == '+')) ++i;
  digits = run();
  if (i < s.size() && s[i] == '.') {
    *is_float = true;
    ++i;
    digits += run();
  }
  if (digits == 0) return false;
  if (i < s.size() && (s[i] == 'e' || s[i] == 'E')) {
    *is_float = true;
    ++i;
    if (i < s.size() && (s[i] == '-' || s[i] == '+')) ++i;
    if (run() == 0) return false;
  }
  return i == s.size();
}

// Makes JSON of the parser's events. It goes on reading after a failure (the parser cannot be told to stop), but does nothing.
class Builder final : public YAML::EventHandler {
 public:
  explicit Builder(const YamlLimits& limits) : limits_(limits) {}

  json result;
  std::string error;
  bool is_null = true;  // the document is empty, or null

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark&, const std::string&) override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { Value(mark, anchor, nullptr, 1); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (failed()) return;
    auto it = anchors_.find(anchor);
    if (it == anchors_.end()) return Fail(mark, "an alias to something that holds it");
    if (WantsKey()) return Fail(mark, "an alias as a key");
    Value(mark, 0, it->second.value, it->second.nodes);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& value) override {
    if (failed()) return;
    constexpr std::string_view kCore = "tag:yaml.org,2002:";
    std::string_view type = tag;
    bool plain = type == "?" || type.empty();
    if (!plain && type != "!" && type != std::string(kCore) + "str") {
      return Fail(mark, "the tag \"" + SanitizeName(tag) + "\" is not supported");
    }
    if (!plain || WantsKey()) {
      if (plain && IsAmbiguous(value)) return Ambiguous(mark, value);
      plain_key_ = plain;
      return Text(mark, anchor, value);
    }
    if (IsAmbiguous(value)) return Ambiguous(mark, value);
    if (IsOneOf(value, {"true", "True", "TRUE"})) return Value(mark, anchor, true, 1);
    if (IsOneOf(value, {"false", "False", "FALSE"})) return Value(mark, anchor, false, 1);
    bool is_float;
    if (!LooksLikeNumber(value, &is_float)) return Text(mark, anchor, value);
    const char* begin = value.data() + (value[0] == '+' ? 1 : 0);
    const char* end = value.data() + value.size();
    if (is_float) {
      double d = 0;
      auto [at, ec] = std::from_chars(begin, end, d);
      if (ec != std::errc() || at != end || !std::isfinite(d)) return Fail(mark, "the number " + SanitizeName(value) + " is out of range; quote it if it is text");
      return Value(mark, anchor, d, 1);
    }
    int64_t i = 0;
    uint64_t u = 0;
    if (auto [at, ec] = std::from_chars(begin, end, i); ec == std::errc() && at == end) return Value(mark, anchor, i, 1);
    if (auto [at, ec] = std::from_chars(begin, end, u); ec == std::errc() && at == end) return Value(mark, anchor, u, 1);
    Fail(mark, "the number " + SanitizeName(value) + " is out of range; quote it if it is text");
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    Open(mark, tag, "tag:yaml.org,2002:seq", anchor, json::array());
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    Open(mark, tag, "tag:yaml.org,2002:map", anchor, json::object());
  }
  void OnMapEnd() override { Close(); }

  void Fail(const YAML::Mark& mark, const std::string& what) {
    if (failed()) return;
    error = mark.is_null() ? what : std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1) + ": " + what;
  }

 private:
  struct Frame {
    json value;
    YAML::anchor_t anchor;
    size_t nodes_before;
    YAML::Mark mark;
    std::string key;
    bool has_key = false;
  };
  struct Anchored {
    json value;
    size_t nodes;
  };

  bool failed() const { return !error.empty(); }
  bool WantsKey() const { return !stack_.empty() && stack_.back().value.is_object() && !stack_.back().has_key; }

  void Ambiguous(const YAML::Mark& mark, const std::string& value) {
    Fail(mark, "\"" + SanitizeName(value) + "\" without quotes means different things to different readers; quote it, or write true, false or a plain number");
  }

  // Long text counts for several nodes, so that the bound also holds for what aliases repeat.
  void Text(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& value) {
    Value(mark, anchor, value, 1 + value.size() / 32);
  }

  void Value(const YAML::Mark& mark, YAML::anchor_t anchor, json value, size_t nodes) {
    if (failed()) return;
    nodes_ += nodes;
    if (nodes_ > limits_.max_nodes) return Fail(mark, "more than " + std::to_string(limits_.max_nodes) + " nodes");
    if (anchor != 0) anchors_[anchor] = {value, nodes};
    if (stack_.empty()) {
      is_null = value.is_null();
      result = std::move(value);
      return;
    }
    Frame& top = stack_.back();
    if (top.value.is_array()) {
      top.value.push_back(std::move(value));
    } else if (top.has_key) {
      top.value[top.key] = std::move(value);
      top.has_key = false;
    } else {
      if (!value.is_string()) return Fail(mark, "a key that is no text");
      std::string key = value.get<std::string>();
      if (plain_key_ && key == "<<") return Fail(mark, "merge keys (\"<<\") are not supported; write the fields out");
      if (top.value.contains(key)) return Fail(mark, "the key \"" + SanitizeName(key) + "\" is there twice");
      top.key = std::move(key);
      top.has_key = true;
    }
  }

  void Open(const YAML::Mark& mark, const std::string& tag, std::string_view core_tag, YAML::anchor_t anchor, json value) {
    if (failed()) return;
    if (!IsOneOf(tag, {"", "?", "!"}) && tag != core_tag) return Fail(mark, "the tag \"" + SanitizeName(tag) + "\" is not supported");
    if (WantsKey()) return Fail(mark, "a key that is no text");
    if (stack_.size() >= limits_.max_depth) return Fail(mark, "nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    stack_.push_back({std::move(value), anchor, nodes_, mark, {}, false});
  }

  void Close() {
    if (failed()) return;
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    size_t inside = nodes_ - frame.nodes_before;
    nodes_ = frame.nodes_before;  // Value counts them again
    Value(frame.mark, frame.anchor, std::move(frame.value), inside + 1);
  }

  const YamlLimits& limits_;
  std::vector<Frame> stack_;
  std::map<YAML::anchor_t, Anchored> anchors_;
  size_t nodes_ = 0;
  bool plain_key_ = false;
};

}  // namespace

Result<json> YamlToJson(std::string_view yaml, const YamlLimits& limits) {
  if (yaml.size() > limits.max_bytes) {
    return Error{ErrorCode::kExhausted, "the YAML is larger than " + std::to_string(limits.max_bytes) + " bytes"};
  }
  Builder builder(limits), second(limits);
  try {
    std::istringstream stream{std::string(yaml)};
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    if (builder.error.empty() && parser.HandleNextDocument(second) && (!second.is_null || !second.error.empty())) {
      builder.error = "more than one YAML document; give one a file";
    }
  } catch (const YAML::Exception& e) {
    builder.Fail(e.mark, e.msg);
  } catch (const std::exception& e) {
    builder.Fail(YAML::Mark::null_mark(), e.what());
  }
  if (!builder.error.empty()) return Error{ErrorCode::kInvalid, "YAML: " + builder.error};
  return std::move(builder.result);
}

}  // namespace borescope::kube
