// SPDX-License-Identifier: Apache-2.0
#include "common/kube/projection.h"

#include <nlohmann/json.hpp>

#include "common/base/strings.h"

namespace borescope::kube {
namespace {

using nlohmann::json;

std::vector<std::string> SplitPath(std::string_view path) {
  std::vector<std::string> keys(1);
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '\\' && i + 1 < path.size()) {
      keys.back() += path[++i];
    } else if (path[i] == '.') {
      keys.emplace_back();
    } else {
      keys.back() += path[i];
    }
  }
  return keys;
}

void MergeNode(const Projection::Node& from, Projection::Node* to) {
  to->whole = to->whole || from.whole;
  for (const auto& [key, child] : from.children) MergeNode(child, &to->children[key]);
}

// Builds the wanted part of a document from the parser's events.
class Builder final : public json::json_sax_t {
 public:
  Builder(const Projection::Node& root, size_t max_depth) : max_depth_(max_depth) {
    bool all = root.children.empty();
    root_nodes_ = {&root};
    root_whole_ = all;
  }

  json result;
  std::string error;

  bool null() override { return Scalar(nullptr); }
  bool boolean(bool v) override { return Scalar(v); }
  bool number_integer(number_integer_t v) override { return Scalar(v); }
  bool number_unsigned(number_unsigned_t v) override { return Scalar(v); }
  bool number_float(number_float_t v, const string_t&) override { return Scalar(v); }
  bool string(string_t& v) override { return Scalar(std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(json::value_t::object); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(json::value_t::array); }
  bool end_array() override { return Close(); }
  bool key(string_t& k) override {
    if (skipping_ == 0) key_ = std::move(k);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    error = "not JSON at byte " + std::to_string(position);
    return false;
  }

 private:
  struct Frame {
    json* value;
    std::vector<const Projection::Node*> nodes;  // where we are, once a path that led here
    bool whole;                                  // all below is wanted
  };

  // Which nodes the value that comes now is at. False: it is not wanted.
  bool Locate(std::vector<const Projection::Node*>* nodes, bool* whole) const {
    if (stack_.empty()) {
      *nodes = root_nodes_;
      *whole = root_whole_;
      return true;
    }
    const Frame& top = stack_.back();
    *whole = top.whole;
    if (top.whole) return true;
    if (top.value->is_array()) {
      *nodes = top.nodes;
      return true;
    }
    for (const Projection::Node* node : top.nodes) {
      for (std::string_view name : {std::string_view(key_), std::string_view("*")}) {
        auto child = node->children.find(name);
        if (child == node->children.end()) continue;
        nodes->push_back(&child->second);
        *whole = *whole || child->second.whole;
      }
    }
    return *whole || !nodes->empty();
  }

  json* Put(json value) {
    if (stack_.empty()) return &(result = std::move(value));
    json* parent = stack_.back().value;
    if (parent->is_array()) {
      parent->push_back(std::move(value));
      return &parent->back();
    }
    return &((*parent)[key_] = std::move(value));
  }

  template <typename T>
  bool Scalar(T&& value) {
    if (skipping_ > 0) return true;
    std::vector<const Projection::Node*> nodes;
    bool whole = false;
    // On the way to something deeper a scalar is a dead end.
    if (Locate(&nodes, &whole) && whole) Put(json(std::forward<T>(value)));
    return true;
  }

  bool Open(json::value_t type) {
    if (++depth_ > max_depth_) {
      error = "nested deeper than " + std::to_string(max_depth_) + " levels";
      return false;
    }
    Frame frame{nullptr, {}, false};
    if (skipping_ > 0 || !Locate(&frame.nodes, &frame.whole)) {
      ++skipping_;
      return true;
    }
    frame.value = Put(json(type));
    stack_.push_back(std::move(frame));
    return true;
  }

  bool Close() {
    --depth_;
    if (skipping_ > 0) {
      --skipping_;
    } else {
      stack_.pop_back();
    }
    return true;
  }

  const size_t max_depth_;
  std::vector<const Projection::Node*> root_nodes_;
  bool root_whole_;
  std::vector<Frame> stack_;
  std::string key_;
  size_t skipping_ = 0;  // containers open that are not wanted
  size_t depth_ = 0;
};

}  // namespace

Projection::Projection(std::initializer_list<std::string_view> paths) {
  for (std::string_view path : paths) Add(path);
}

Projection::Projection(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) Add(path);
}

void Projection::Add(std::string_view path) {
  Node* node = &root_;
  for (const std::string& key : SplitPath(path)) node = &node->children[key];
  node->whole = true;
}

Projection Projection::Under(std::string_view prefix) const {
  Projection out;
  Node* node = &out.root_;
  for (const std::string& key : SplitPath(prefix)) node = &node->children[key];
  *node = root_;
  node->whole = root_.children.empty();
  return out;
}

void Projection::Merge(const Projection& other) {
  if (root_.children.empty()) return;  // all is kept already
  if (other.root_.children.empty()) {
    root_ = {};
    return;
  }
  MergeNode(other.root_, &root_);
}

Result<json> Projection::Parse(std::string_view text, size_t max_depth) const {
  Builder builder(root_, max_depth);
  if (!json::sax_parse(text.begin(), text.end(), &builder) || !builder.error.empty()) {
    return Error{ErrorCode::kInvalid, builder.error.empty() ? "not JSON" : builder.error};
  }
  return std::move(builder.result);
}

}  // namespace borescope::kube
