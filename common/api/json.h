// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "common/api/types.h"
#include "common/base/result.h"

namespace borescope::api {

// JSON to values. Unknown fields are ignored and null counts as absent, as in the API server; defaults and bounds are those of the
// CRDs. Errors are kInvalid and name the path, the value found and what is allowed:
// "spec.profiles[0].cpu.frequencyHertz: found 5000; give a whole number from 1 to 999".
Result<ProfilingSession> ParseProfilingSession(const nlohmann::json& object);
Result<NodeSampler> ParseNodeSampler(const nlohmann::json& object);
Result<NodeSamplerReport> ParseNodeSamplerReport(const nlohmann::json& object);

// What the CRD checks with CEL: one target, unique names and kinds of profiles, reserved labels … ParseProfilingSession checks
// types and bounds only. The first refusal: field, value found, next step.
Status Validate(const ProfilingSessionSpec& spec);
// For a run on this machine, where processes take the place of the target.
Status ValidateWithoutTarget(const ProfilingSessionSpec& spec);

// Whole objects; metadata without what only the server writes (generation, times). Texts of a status are made safe to show and
// cut to the bounds of the CRD; those of a spec are written as they are.
nlohmann::json ToJson(const ProfilingSession& session);
nlohmann::json ToJson(const NodeSampler& sampler);
nlohmann::json ToJson(const NodeSamplerReport& report);
nlohmann::json ToJson(const NodeSamplerSpec& spec);
nlohmann::json ToJson(const JobReport& report);

// The object that a sampler creates for its node; its owner is the Node, so that it goes when the node goes.
// kind: kNodeSamplerKind or kNodeSamplerReportKind.
nlohmann::json NewNodeObject(std::string_view kind, std::string_view node, std::string_view node_uid);

// JSON merge patches. An absent difference is the empty object {} (send nothing).

// Both lists of the spec, whole, fenced by resourceVersion: another writer in between is a 409.
nlohmann::json SpecPatch(const NodeSamplerSpec& spec, std::string_view resource_version);
// What differs between two states of the sampler's own objects; a job that is in `before` only is pruned (null).
nlohmann::json ReportPatch(const NodeSamplerReportStatus& before, const NodeSamplerReportStatus& after);
nlohmann::json NodeSamplerStatusPatch(const NodeSamplerStatus& before, const NodeSamplerStatus& after);
// For profilingsessions/status, fenced by the session's resourceVersion: a second writer in between, or a session that was deleted
// and made anew under its name, is a 409 (the server ignores a uid in a patch).
nlohmann::json SessionStatusPatch(const ObjectMeta& session, const ProfilingSessionStatus& before,
                                  const ProfilingSessionStatus& after);

// RFC 7396: the patch that makes `to` of `from`, both objects; {} when they are equal.
nlohmann::json MergePatch(const nlohmann::json& from, const nlohmann::json& to);

}  // namespace borescope::api
