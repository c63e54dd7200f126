// SPDX-License-Identifier: Apache-2.0
#include "sampler/publish/series.h"

#include <xxhash.h>

#include <algorithm>

#include "common/base/strings.h"
#include "common/codec/pprof.h"
#include "common/gzip/gzip.h"

namespace borescope::publish {
namespace {

// Limits of a Pyroscope server that nobody has configured.
constexpr size_t kMaxLabels = 30;
constexpr size_t kMaxValueBytes = 2048;
constexpr size_t kMaxSamples = 16'000;
constexpr size_t kMaxPprofBytes = 4 << 20;

std::string LabelName(std::string_view key) {
  std::string name(key.substr(0, 1024));
  for (char& c : name) {
    bool word = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    if (!word) c = '_';
  }
  if (!name.empty() && name[0] >= '0' && name[0] <= '9') name.insert(name.begin(), '_');
  return name;
}

std::string LabelValue(std::string_view value) {
  std::string text = SanitizeUtf8(value);
  if (text.size() <= kMaxValueBytes) return text;
  size_t end = kMaxValueBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

// The samples [begin, end) of a profile as one of their own.
profile::Profile Slice(const profile::Profile& whole, size_t begin, size_t end) {
  profile::Profile part;
  part.sample_types = whole.sample_types;
  part.period_type = whole.period_type;
  part.period = whole.period;
  part.time_ns = whole.time_ns;
  part.duration_ns = whole.duration_ns;
  part.default_sample_type = whole.default_sample_type;
  part.comments = whole.comments;
  // The main binary stays the first mapping.
  if (!whole.mappings().empty()) part.AddMapping(whole.mappings().front());
  std::vector<uint32_t> locations(whole.locations().size(), profile::kNone);
  for (size_t i = begin; i < end; ++i) {
    const profile::Sample& sample = whole.samples()[i];
    std::vector<uint32_t> stack;
    for (uint32_t old : sample.locations) {
      if (old >= locations.size()) continue;
      if (locations[old] == profile::kNone) {
        profile::Location location = whole.locations()[old];
        if (location.mapping != profile::kNone) location.mapping = part.AddMapping(whole.mappings()[location.mapping]);
        for (profile::Line& line : location.lines) {
          if (line.function != profile::kNone) line.function = part.AddFunction(whole.functions()[line.function]);
        }
        locations[old] = part.AddLocation(location);
      }
      stack.push_back(locations[old]);
    }
    part.AddSample(stack, sample.values, sample.labels);
  }
  // Which samples the squares are of is not known any more: each part has its share.
  const size_t value = whole.DefaultValue();
  if (int64_t total = whole.Total(value); total > 0) {
    part.squares = whole.squares * static_cast<double>(part.Total(value)) / static_cast<double>(total);
  }
  return part;
}

void Encode(const profile::Profile& whole, size_t begin, size_t end, std::vector<EncodedPart>& parts) {
  if (end - begin <= kMaxSamples) {
    profile::Profile part = begin == 0 && end == whole.samples().size() ? whole : Slice(whole, begin, end);
    part.time_ns = whole.time_ns + static_cast<int64_t>(parts.size());
    std::string pprof = codec::EncodePprof(part);
    if (pprof.size() <= kMaxPprofBytes || end - begin <= 1) {
      parts.push_back({gzip::Gzip(pprof), part.time_ns, part.sample_types.empty() ? 0 : part.Total(part.sample_types.size() - 1)});
      return;
    }
  }
  size_t middle = begin + (end - begin) / 2;
  Encode(whole, begin, middle, parts);
  Encode(whole, middle, end, parts);
}

}  // namespace

std::map<std::string, std::string> SeriesLabels(const SeriesSource& source) {
  std::map<std::string, std::string> labels;
  auto take = [&](std::string_view key, std::string_view value) {
    std::string name = LabelName(key);
    if (!name.empty() && !value.empty()) labels[name] = LabelValue(value);
  };
  // "__" names steer the receiver: only ours.
  auto tenant = [&](const std::map<std::string, std::string>& from, size_t most) {
    for (const auto& [key, value] : from) {
      if (most == 0) break;
      if (LabelName(key).starts_with("__")) continue;
      take(key, value);
      --most;
    }
  };
  constexpr size_t kOurs = 16;  // identity and what is added below
  tenant(source.pod_labels, kMaxLabels - kOurs);
  std::map<std::string, std::string> session_labels;
  for (const auto& [key, value] : source.session_labels) {
    if (!labels.contains(LabelName(key))) session_labels[key] = value;
    // A label that the pod has too is the session's in the end, and takes no room.
    else if (!LabelName(key).starts_with("__")) take(key, value);
  }
  tenant(session_labels, kMaxLabels - kOurs - std::min(labels.size(), kMaxLabels - kOurs));
  for (const auto& [key, value] : source.identity) take(key, value);
  take("container", source.container);
  take("language", source.language);
  take("profiling_session", source.session);
  take("__name__", source.profile_name);
  take("__delta__", "false");
  take("pyroscope_spy", "borescope");
  return labels;
}

std::string WindowId(std::string_view job_id, std::string_view container_id, std::string_view kind, int64_t start_ns,
                     std::string_view incarnation, int part) {
  std::string key;
  for (std::string_view field : {job_id, container_id, kind, incarnation}) {
    key += std::to_string(field.size());
    key += ':';
    key += field;
  }
  key += std::to_string(start_ns) + ":" + std::to_string(part);
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(key.data(), key.size()));
  canonical.digest[6] = static_cast<unsigned char>((canonical.digest[6] & 0x0f) | 0x80);  // version 8: our own scheme
  canonical.digest[8] = static_cast<unsigned char>((canonical.digest[8] & 0x3f) | 0x80);
  std::string hex = HexEncode({reinterpret_cast<const char*>(canonical.digest), sizeof canonical.digest});
  for (size_t at : {20, 16, 12, 8}) hex.insert(at, "-");
  return hex;
}

std::vector<EncodedPart> EncodeParts(const profile::Profile& profile) {
  std::vector<EncodedPart> parts;
  Encode(profile, 0, profile.samples().size(), parts);
  return parts;
}

}  // namespace borescope::publish
