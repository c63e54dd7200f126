// SPDX-License-Identifier: Apache-2.0
#include "store/query/selector.h"

#include <re2/re2.h>

#include <algorithm>

#include "common/base/log.h"
#include "common/base/strings.h"

namespace borescope::store {
namespace {

constexpr size_t kMaxBytes = 4096;
constexpr size_t kMaxMatchers = 32;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<std::vector<Matcher>> Run() {
    std::vector<Matcher> matchers;
    if (!Take('{')) return Expected("\"{\"");
    while (!Take('}')) {
      if (matchers.size() >= kMaxMatchers) return Error{ErrorCode::kInvalid, "selector: more than " + std::to_string(kMaxMatchers) + " matchers"};
      ASSIGN_OR_RETURN(Matcher matcher, ParseMatcher());
      matchers.push_back(std::move(matcher));
      if (Take(',')) continue;
      if (!Take('}')) return Expected("\",\" or \"}\"");
      break;
    }
    SkipSpace();
    if (at_ < text_.size()) return Expected("the end");
    return matchers;
  }

 private:
  Result<Matcher> ParseMatcher() {
    Matcher matcher;
    SkipSpace();
    if (Peek() == '"') {
      ASSIGN_OR_RETURN(matcher.name, ParseString());
    } else {
      size_t begin = at_;
      while (at_ < text_.size() && IsNameCharacter(text_[at_])) ++at_;
      matcher.name = text_.substr(begin, at_ - begin);
    }
    if (matcher.name.empty()) return Expected("a label's name");
    SkipSpace();
    std::string_view op = text_.substr(at_, 2);
    if (op == "=~") {
      matcher.op = Matcher::Op::kMatch;
    } else if (op == "!~") {
      matcher.op = Matcher::Op::kNotMatch;
    } else if (op == "!=") {
      matcher.op = Matcher::Op::kNotEqual;
    } else if (op.starts_with('=')) {
      op = "=";
    } else {
      return Expected("one of = != =~ !~");
    }
    at_ += op.size();
    SkipSpace();
    if (Peek() != '"') return Expected("a value in double quotes");
    ASSIGN_OR_RETURN(matcher.value, ParseString());
    if (matcher.op == Matcher::Op::kMatch || matcher.op == Matcher::Op::kNotMatch) {
      RE2::Options options;
      options.set_log_errors(false);
      options.set_max_mem(1 << 20);
      options.set_dot_nl(true);
      auto regex = std::make_shared<const RE2>(matcher.value, options);
      if (!regex->ok()) {
        return Error{ErrorCode::kInvalid, "selector: the value of " + JsonQuote(SanitizeName(matcher.name, 64)) +
                                              " is no regular expression (RE2): " + SanitizeName(regex->error(), 200)};
      }
      matcher.regex = std::move(regex);
    }
    return matcher;
  }

  Result<std::string> ParseString() {
    std::string value;
    for (++at_; at_ < text_.size(); ++at_) {
      char c = text_[at_];
      if (c == '"') {
        ++at_;
        return value;
      }
      if (c == '\\') {
        if (++at_ == text_.size()) break;
        c = text_[at_];
        // Those of the two characters that need it and line ends; any other is for the regular expression: "a\.b".
        if (c == 'n') {
          c = '\n';
        } else if (c == 't') {
          c = '\t';
        } else if (c != '"' && c != '\\') {
          value += '\\';
        }
      }
      value += c;
    }
    return Expected("a closing quote");
  }

  static bool IsNameCharacter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void SkipSpace() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) ++at_;
  }
  bool Take(char c) {
    SkipSpace();
    if (Peek() != c) return false;
    ++at_;
    return true;
  }
  Error Expected(std::string_view what) const {
    return {ErrorCode::kInvalid, "selector: expected " + std::string(what) + " at character " + std::to_string(at_ + 1) + ", found " +
                                     (at_ < text_.size() ? JsonQuote(SanitizeName(text_.substr(at_), 32)) : "the end") +
                                     "; the form is {name=\"value\", other=~\"a|b\"}"};
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

bool Matcher::Matches(const Labels& sorted_labels) const {
  auto it = std::ranges::lower_bound(sorted_labels, name, {}, [](const auto& label) -> const std::string& { return label.first; });
  std::string_view found = it != sorted_labels.end() && it->first == name ? std::string_view(it->second) : std::string_view();
  switch (op) {
    case Op::kEqual: return found == value;
    case Op::kNotEqual: return found != value;
    case Op::kMatch: return RE2::FullMatch(re2::StringPiece(found.data(), found.size()), *regex);
    case Op::kNotMatch: return !RE2::FullMatch(re2::StringPiece(found.data(), found.size()), *regex);
  }
  return false;
}

std::string Matcher::ToString() const {
  constexpr std::string_view kOps[] = {"=", "!=", "=~", "!~"};
  return name + std::string(kOps[static_cast<int>(op)]) + JsonQuote(value);
}

Result<std::vector<Matcher>> ParseSelector(std::string_view text) {
  if (text.size() > kMaxBytes) {
    return Error{ErrorCode::kInvalid, "selector: it has " + std::to_string(text.size()) + " bytes, the limit is " + std::to_string(kMaxBytes)};
  }
  return Parser(text).Run();
}

}  // namespace borescope::store
