// SPDX-License-Identifier: Apache-2.0
#include "sampler/naming/wire.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/base/strings.h"

namespace borescope::naming {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, kOutcomes> kTable = {{
#define BORESCOPE_NAMING(enumerator, label, text) {label, text},
    BORESCOPE_NAMING_TABLE(BORESCOPE_NAMING)
#undef BORESCOPE_NAMING
}};

class Writer {
 public:
  template <typename T>
  void Number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void String(std::string_view s, size_t max_bytes) {
    s = s.substr(0, max_bytes);
    Number(static_cast<uint16_t>(s.size()));
    text_ += s;
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  template <typename T>
  T Number() {
    T value{};
    if (rest_.size() < sizeof(value)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, rest_.data(), sizeof(value));
    rest_.remove_prefix(sizeof(value));
    return value;
  }
  std::string Bytes(size_t max_bytes) {
    const size_t size = Number<uint16_t>();
    if (!ok_ || size > max_bytes || size > rest_.size()) {
      ok_ = false;
      return "";
    }
    std::string s(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return s;
  }
  std::string Text(size_t max_bytes) { return SanitizeName(Bytes(max_bytes), max_bytes); }
  bool ok() const { return ok_; }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

Outcome ReadOutcome(Reader& in, bool* ok) {
  const auto value = in.Number<uint8_t>();
  if (value >= kOutcomes) *ok = false;
  return static_cast<Outcome>(std::min<size_t>(value, kOutcomes - 1));
}

}  // namespace

std::string_view OutcomeLabel(Outcome outcome) { return kTable[static_cast<size_t>(outcome)].first; }
std::string_view OutcomeText(Outcome outcome) { return kTable[static_cast<size_t>(outcome)].second; }

size_t EncodedBytes(const AddressNames& names) {
  size_t bytes = 10;
  for (const NamedLine& line : names.lines) bytes += 14 + line.function.size() + line.system_name.size() + line.file.size();
  return bytes;
}

std::string Encode(const NameReply& reply) {
  Writer out;
  out.Number(reply.number);
  out.Number(static_cast<uint8_t>(reply.kind));
  switch (reply.kind) {
    case NameReply::kNames:
      out.Number(static_cast<uint16_t>(reply.names.size()));
      for (const AddressNames& names : reply.names) {
        out.Number(static_cast<uint8_t>(names.outcome));
        out.Number(names.start);
        const size_t count = std::min(names.lines.size(), kMaxInlined);
        out.Number(static_cast<uint8_t>(count));
        for (size_t i = names.lines.size() - count; i < names.lines.size(); ++i) {
          const NamedLine& line = names.lines[i];
          out.Number(line.line);
          out.Number(line.start_line);
          out.String(line.function, kMaxName);
          out.String(line.system_name, kMaxSystemName);
          out.String(line.file, kMaxPath);
        }
      }
      break;
    case NameReply::kWant:
      out.Number(static_cast<uint8_t>(reply.wanted.kind));
      out.Number(reply.wanted.attempt);
      out.String(reply.wanted.name, kMaxPath);
      out.String(reply.wanted.directory, kMaxPath);
      out.String(reply.wanted.build_id, 64);
      break;
    case NameReply::kDone:
      out.Number(static_cast<uint8_t>(reply.has_debug));
      out.String(reply.problem, kMaxProblem);
      break;
    case NameReply::kError:
      out.Number(static_cast<uint8_t>(reply.outcome));
      out.String(reply.problem, kMaxProblem);
      break;
  }
  return out.Take();
}

std::optional<NameReply> Decode(std::string_view bytes) {
  Reader in(bytes);
  NameReply reply;
  bool ok = true;
  reply.number = in.Number<uint64_t>();
  const auto kind = in.Number<uint8_t>();
  if (!in.ok() || kind > NameReply::kError) return std::nullopt;
  reply.kind = static_cast<NameReply::Kind>(kind);
  switch (reply.kind) {
    case NameReply::kNames: {
      const size_t count = in.Number<uint16_t>();
      if (count > NameRequest::kMaxAddresses) return std::nullopt;
      for (size_t i = 0; i < count && in.ok() && ok; ++i) {
        AddressNames& names = reply.names.emplace_back();
        names.outcome = ReadOutcome(in, &ok);
        names.start = in.Number<uint64_t>();
        const size_t lines = in.Number<uint8_t>();
        if (lines > kMaxInlined) return std::nullopt;
        for (size_t k = 0; k < lines && in.ok(); ++k) {
          NamedLine& line = names.lines.emplace_back();
          line.line = in.Number<uint32_t>();
          line.start_line = in.Number<uint32_t>();
          line.function = in.Text(kMaxName);
          line.system_name = in.Text(kMaxSystemName);
          line.file = in.Text(kMaxPath);
          ok = ok && !line.function.empty();
        }
      }
      break;
    }
    case NameReply::kWant: {
      const auto what = in.Number<uint8_t>();
      if (what >= Wanted::kKinds) return std::nullopt;
      reply.wanted.kind = static_cast<Wanted::Kind>(what);
      reply.wanted.attempt = in.Number<uint8_t>();
      reply.wanted.name = in.Bytes(kMaxPath);
      reply.wanted.directory = in.Bytes(kMaxPath);
      reply.wanted.build_id = in.Bytes(64);
      break;
    }
    case NameReply::kDone:
      reply.has_debug = in.Number<uint8_t>() != 0;
      reply.problem = in.Text(kMaxProblem);
      break;
    case NameReply::kError:
      reply.outcome = ReadOutcome(in, &ok);
      reply.problem = in.Text(kMaxProblem);
      break;
  }
  if (!ok || !in.ok() || !in.at_end()) return std::nullopt;
  return reply;
}

}  // namespace borescope::naming
