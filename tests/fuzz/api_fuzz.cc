// SPDX-License-Identifier: Apache-2.0
// Objects from an API server, hostile ones: no crash, and what was read can be written and read again as the same value.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/api/json.h"

namespace {

using nlohmann::json;

// The value when it was read.
template <typename T>
std::optional<T> Again(borescope::Result<T> (*parse)(const json&), const json& object) {
  borescope::Result<T> value = parse(object);
  if (!value.ok()) return std::nullopt;
  // The first writing may cut texts; from then on nothing changes.
  json written = borescope::api::ToJson(*value);
  borescope::Result<T> again = parse(written);
  if (!again.ok() || borescope::api::ToJson(*again) != written) std::abort();
  if (written.dump().empty()) std::abort();
  return *std::move(again);
}

// A patch makes the one of the other; no difference is no patch.
void Patched(const json& object, const json& whole_status, const json& no_change) {
  if (!no_change.empty()) std::abort();
  if (!whole_status.empty() && !whole_status["status"].is_object()) std::abort();
  json spec = object.value("spec", json::object()), status = object.value("status", json::object());
  json patched = spec;
  patched.merge_patch(borescope::api::MergePatch(spec, status));
  if (patched != status) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace borescope::api;
  json object = json::parse(data, data + size, nullptr, false);
  if (object.is_discarded()) return 0;
  if (auto session = Again(ParseProfilingSession, object)) {
    if (borescope::Status valid = Validate(session->spec); !valid.ok() && valid.error().message.empty()) std::abort();
    Patched(ToJson(*session), SessionStatusPatch(session->metadata, {}, session->status),
            SessionStatusPatch(session->metadata, session->status, session->status));
  }
  if (auto sampler = Again(ParseNodeSampler, object)) {
    Patched(ToJson(*sampler), NodeSamplerStatusPatch({}, sampler->status), NodeSamplerStatusPatch(sampler->status, sampler->status));
    json whole = NewNodeObject(kNodeSamplerKind, sampler->metadata.name, sampler->metadata.uid);
    whole.merge_patch(SpecPatch(sampler->spec, "1"));
    if (!ParseNodeSampler(whole).ok()) std::abort();
  }
  if (auto report = Again(ParseNodeSamplerReport, object)) {
    Patched(ToJson(*report), ReportPatch({}, report->status), ReportPatch(report->status, report->status));
  }
  return 0;
}
