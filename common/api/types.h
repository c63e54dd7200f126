// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The kinds of profiling.borescope.dev/v1alpha1 as plain values; docs/crd-reference.md says what the fields mean, json.h turns
// them into JSON and back. Times are nanoseconds of CLOCK_REALTIME, 0 = not set. Defaults here are those of the CRDs (tested).
namespace borescope::api {

inline constexpr std::string_view kGroup = "profiling.borescope.dev";
inline constexpr std::string_view kVersion = "v1alpha1";
inline constexpr std::string_view kApiVersion = "profiling.borescope.dev/v1alpha1";
inline constexpr std::string_view kProfilingSessionKind = "ProfilingSession";
inline constexpr std::string_view kNodeSamplerKind = "NodeSampler";
inline constexpr std::string_view kNodeSamplerReportKind = "NodeSamplerReport";
// As in URLs: /apis/profiling.borescope.dev/v1alpha1/…
inline constexpr std::string_view kProfilingSessions = "profilingsessions";
inline constexpr std::string_view kNodeSamplers = "nodesamplers";
inline constexpr std::string_view kNodeSamplerReports = "nodesamplerreports";

// Stands in every refusal of the ValidatingAdmissionPolicy that ties a sampler's writes to its node. A sampler whose dry-run
// create under a foreign name is not refused with a 403 that holds this text is unprotected.
inline constexpr std::string_view kAdmissionPolicyMessage = "a sampler may write only the objects of the node in its token";

// Bounds that others need; the rest stand in the CRDs and in json.cc.
inline constexpr size_t kMaxSessionNameBytes = 63;
inline constexpr size_t kMaxJobIdBytes = 63 + 1 + 63 + 1 + 36;
inline constexpr size_t kMaxNodeSamplerSpecBytes = 256 << 10;
inline constexpr size_t kMaxReportBytes = 16 << 10;
inline constexpr size_t kMaxTopPerProfile = 16;
inline constexpr size_t kMaxTargetDetails = 50;
inline constexpr size_t kMaxJobsPerNode = 64;
inline constexpr size_t kMaxPodsPerNode = 512;

struct ObjectMeta {
  std::string namespace_name;  // empty for cluster-scoped kinds
  std::string name;
  std::string uid;
  std::string resource_version;
  int64_t generation = 0;
  int64_t creation_time = 0;
  int64_t deletion_time = 0;
  bool operator==(const ObjectMeta&) const = default;
};

// metav1.Condition.
struct Condition {
  std::string type;
  std::string status;  // True | False | Unknown
  std::string reason;  // CamelCase, never empty
  std::string message;
  int64_t observed_generation = 0;
  int64_t last_transition_time = 0;
  bool operator==(const Condition&) const = default;
};

// The condition of that type, or nullptr.
const Condition* FindCondition(const std::vector<Condition>& conditions, std::string_view type);
bool IsTrue(const std::vector<Condition>& conditions, std::string_view type);
// Adds or replaces the condition of that type; lastTransitionTime becomes `now` only when its status is new or another one, and
// is kept otherwise (what `condition` carries there is ignored). True when anything changed.
bool SetCondition(std::vector<Condition>& conditions, Condition condition, int64_t now);

// ---- ProfilingSession ------------------------------------------------------------------------------------------------------

enum class ProfileKind { kCpu, kWall, kOffCpu, kPerfEvent, kLocks, kMemory, kThreads };
// The names of the kinds as the spec writes them ("cpu", "wall", "offCPU" …), by enumerator.
inline constexpr std::array<std::string_view, 7> kProfileKindNames = {"cpu",   "wall",   "offCPU", "perfEvent",
                                                                      "locks", "memory", "threads"};
constexpr std::string_view ProfileKindName(ProfileKind kind) { return kProfileKindNames[static_cast<size_t>(kind)]; }
std::optional<ProfileKind> ProfileKindFromName(std::string_view name);

inline constexpr int kMaxFrequencyHertz = 999;
constexpr int DefaultFrequencyHertz(ProfileKind kind) { return kind == ProfileKind::kWall ? 49 : 99; }

struct Profile {
  std::string name = "cpu";
  ProfileKind kind = ProfileKind::kCpu;
  int frequency_hertz = 99;          // cpu, wall; 0 for the other kinds
  std::string event;                 // perfEvent
  int64_t sample_period = 0;         // perfEvent
  bool operator==(const Profile&) const = default;
};

struct LabelRequirement {
  std::string key;
  std::string op;  // In | NotIn | Exists | DoesNotExist
  std::vector<std::string> values;
  bool operator==(const LabelRequirement&) const = default;
};

struct LabelSelector {
  std::map<std::string, std::string> match_labels;
  std::vector<LabelRequirement> match_expressions;
  bool operator==(const LabelSelector&) const = default;
};
// Whether a pod with these labels is selected, by the rules of Kubernetes (a missing label satisfies NotIn and DoesNotExist).
bool Matches(const LabelSelector& selector, const std::map<std::string, std::string>& labels);

struct WorkloadRef {
  std::string kind;  // Deployment | StatefulSet | DaemonSet | ReplicaSet | Job
  std::string name;
  bool operator==(const WorkloadRef&) const = default;
};

// Exactly one of the first three.
struct Target {
  std::string pod_name;
  std::optional<LabelSelector> pod_selector;
  std::optional<WorkloadRef> workload_ref;
  std::vector<std::string> container_names;  // empty = all
  int max_pods = 20;
  int wait_seconds = 0;
  bool operator==(const Target&) const = default;
};

enum class KernelStacks { kAuto, kNever };
enum class OnExceed { kThrottle, kStop };
enum class DesiredState { kRun, kStop };

// Per node.
struct Budget {
  int64_t cpu_millis = 100;
  int64_t memory_bytes = 256 << 20;
  OnExceed on_exceed = OnExceed::kThrottle;
  bool operator==(const Budget&) const = default;
};

struct ProfilingSessionSpec {
  Target target;
  int duration_seconds = 60;
  int lookback_seconds = 0;
  std::vector<Profile> profiles = {Profile{}};
  KernelStacks kernel_stacks = KernelStacks::kAuto;
  Budget budget;
  std::vector<std::string> pod_labels;
  std::vector<std::string> program_labels;
  std::map<std::string, std::string> labels;
  std::vector<std::string> sink_names = {"default"};
  int publish_deadline_seconds = 300;
  std::optional<int> ttl_seconds_after_finished;
  DesiredState desired_state = DesiredState::kRun;
  bool operator==(const ProfilingSessionSpec&) const = default;
};

enum class Phase { kPending, kWaiting, kSampling, kPublishing, kComplete, kFailed, kStopped };
inline constexpr std::array<std::string_view, 7> kPhaseNames = {"Pending",  "Waiting", "Sampling", "Publishing",
                                                                "Complete", "Failed",  "Stopped"};
constexpr std::string_view PhaseName(Phase phase) { return kPhaseNames[static_cast<size_t>(phase)]; }

struct TargetCounts {
  int64_t matched = 0;   // pods that the target names
  int64_t selected = 0;  // of them, those chosen (maxPods)
  int64_t sampling = 0;
  int64_t succeeded = 0;
  int64_t failed = 0;
  bool operator==(const TargetCounts&) const = default;
};

struct CpuAccount {
  int64_t used_ns = 0;  // run time of the chosen containers' threads
  int64_t sampled_ns = 0;
  int64_t lost_ns = 0;
  int64_t unexplained_ns = 0;  // used - sampled - lost; can be negative
  bool operator==(const CpuAccount&) const = default;
};

struct SampleCounts {
  int64_t collected = 0;
  int64_t lost = 0;
  int64_t truncated = 0;
  int64_t unsymbolized = 0;
  bool operator==(const SampleCounts&) const = default;
};

struct Overhead {
  int64_t peak_cpu_millis = 0;
  int64_t average_cpu_millis = 0;
  int64_t peak_memory_bytes = 0;
  int64_t tick_millis = 0;  // the bare clock interrupt, beside the others
  bool operator==(const Overhead&) const = default;
};

struct TopFunction {
  std::string profile;
  std::string function;
  std::string location;  // "hash.go:41", may be empty
  std::string language;
  int64_t total_per_mille = 0;
  int64_t own_per_mille = 0;
  int64_t cpu_millis = 0;  // own time in cores
  int64_t error_per_mille = 0;
  bool operator==(const TopFunction&) const = default;
};
// How far a share (0 to 1) that was found in so many effective samples may be from the true one: three standard errors, and never less than
// three samples, since a share of nothing or all of few samples says little. At most 1.
double ShareError(double share, double effective_samples);
// "hash.go:41" is ("hash.go", 41); without a line, 0.
std::pair<std::string_view, int64_t> SplitLocation(std::string_view location);
// One line for a column of kubectl, at most 80 characters: "Pricing::discount  pricing.cc:41  47% ±2".
std::string TopDisplay(const TopFunction& top);

struct SessionResult {
  std::string sink;
  std::string profile;
  std::string state;  // Pending | Published | Failed
  std::string message;
  std::string query;
  std::string url;
  bool operator==(const SessionResult&) const = default;
};

struct TargetDetail {
  std::string pod;
  std::string node;
  std::string container;
  std::string language;
  std::string state;
  std::string reason;
  std::string message;
  bool operator==(const TargetDetail&) const = default;
};

struct ProfilingSessionStatus {
  std::optional<Phase> phase;
  std::vector<Condition> conditions;
  int64_t observed_generation = 0;
  int64_t start_time = 0;
  int64_t end_time = 0;
  int64_t completion_time = 0;
  TargetCounts targets;
  CpuAccount cpu;
  SampleCounts samples;
  std::map<std::string, int64_t> lost_ns;  // by the names of the loss table
  std::map<std::string, int64_t> shares;   // per mille of the CPU
  Overhead overhead;
  std::vector<TopFunction> top;
  std::vector<SessionResult> results;
  std::vector<TargetDetail> target_details;
  bool operator==(const ProfilingSessionStatus&) const = default;
};

struct ProfilingSession {
  ObjectMeta metadata;
  ProfilingSessionSpec spec;
  ProfilingSessionStatus status;
  bool operator==(const ProfilingSession&) const = default;
};

// ---- NodeSampler -----------------------------------------------------------------------------------------------------------

struct PodContainer {
  std::string name;
  std::string image;
  std::string version;
  bool operator==(const PodContainer&) const = default;
};

struct NodePod {
  std::string uid;
  std::string cgroup_uid;  // empty = uid; static pods: kubernetes.io/config.hash
  std::string namespace_name;
  std::string name;
  std::map<std::string, std::string> labels;      // identity labels of the profile
  std::map<std::string, std::string> pod_labels;  // only those some job asks for
  std::vector<PodContainer> containers;
  bool operator==(const NodePod&) const = default;
};

struct SessionRef {
  std::string namespace_name;
  std::string name;
  std::string uid;
  bool operator==(const SessionRef&) const = default;
};

// The kind is text: a sampler must be able to refuse one that it does not know.
struct JobProfile {
  std::string name;
  std::string kind;
  int frequency_hertz = 0;
  bool operator==(const JobProfile&) const = default;
};

struct Job {
  std::string id;  // JobId()
  SessionRef session;
  std::vector<std::string> pod_uids;
  std::vector<std::string> container_names;
  std::vector<JobProfile> profiles;
  KernelStacks kernel_stacks = KernelStacks::kAuto;
  std::vector<std::string> pod_labels;
  std::map<std::string, std::string> labels;
  std::vector<std::string> sink_names;
  int64_t start_time = 0;  // 0 while waiting for a first container
  int64_t end_time = 0;
  int duration_seconds = 0;
  int64_t wait_until = 0;
  int publish_deadline_seconds = 0;
  Budget budget;
  bool stop = false;
  bool operator==(const Job&) const = default;
};

struct NodeSamplerSpec {
  std::vector<NodePod> pods;
  std::vector<Job> jobs;
  bool operator==(const NodeSamplerSpec&) const = default;
};

// What was found out about the node's kernel.
struct KernelFinding {
  std::string name;     // "hardened-usercopy"
  std::string action;   // Refused | Overridden | Warned
  std::string message;  // at most 512 bytes
  bool operator==(const KernelFinding&) const = default;
};

struct NodeSamplerStatus {
  std::string sampler_version;
  std::string kernel_version;
  std::string boot_id;
  std::string incarnation;
  std::string architecture;
  int64_t cpus = 0;
  std::vector<std::string> kinds;
  std::vector<std::string> sink_names;
  int64_t clock_offset_millis = 0;
  std::vector<KernelFinding> kernel_findings;
  int64_t observed_generation = 0;
  std::vector<Condition> conditions;
  bool operator==(const NodeSamplerStatus&) const = default;
};

struct NodeSampler {
  ObjectMeta metadata;
  NodeSamplerSpec spec;
  NodeSamplerStatus status;
  bool operator==(const NodeSampler&) const = default;
};

// ---- NodeSamplerReport -----------------------------------------------------------------------------------------------------

enum class JobState { kAccepted, kWaiting, kSampling, kSampled, kPublished, kFailed };
inline constexpr std::array<std::string_view, 6> kJobStateNames = {"Accepted", "Waiting",   "Sampling",
                                                                   "Sampled",  "Published", "Failed"};
constexpr std::string_view JobStateName(JobState state) { return kJobStateNames[static_cast<size_t>(state)]; }

struct Windows {
  int64_t stored = 0;
  int64_t pending = 0;
  int64_t last_stored_start = 0;
  bool operator==(const Windows&) const = default;
};

struct ReportedFunction {
  std::string profile;
  std::string function;
  std::string location;
  std::string language;
  int64_t total_ns = 0;
  int64_t own_ns = 0;
  bool operator==(const ReportedFunction&) const = default;
};

struct ReportedContainer {
  std::string pod_uid;
  std::string pod;
  std::string container;
  std::string language;
  std::string state;
  std::string reason;
  std::string message;
  int64_t cpu_ns = 0;
  int64_t samples = 0;
  bool operator==(const ReportedContainer&) const = default;
};

struct ReportedSink {
  std::string name;
  std::string state;
  std::string message;
  std::string url;
  int64_t stored = 0;
  int64_t pending = 0;
  bool operator==(const ReportedSink&) const = default;
};

// Reason of a job's report that is no failure: the node's kernel allows less than the frequency asked for.
inline constexpr std::string_view kFrequencyLimited = "FrequencyLimited";
// Condition of a NodeSampler, and reason of the jobs that end by it: its kernel reported a fault in a BPF program.
inline constexpr std::string_view kKernelUnsafe = "KernelUnsafe";

struct JobReport {
  JobState state = JobState::kAccepted;
  std::string reason;
  std::string message;
  int64_t start_time = 0;
  int64_t end_time = 0;
  int64_t first_container_time = 0;
  std::string boot_id;
  std::string incarnation;
  int64_t deadline_boot_ns = 0;
  int64_t cpu_at_arm_ns = 0;
  int64_t cpu_at_last_window_ns = 0;
  Windows windows;
  CpuAccount cpu;
  SampleCounts samples;
  std::map<std::string, int64_t> lost_ns;
  Overhead overhead;
  std::vector<ReportedFunction> top;
  bool top_truncated = false;
  std::map<std::string, int64_t> sums;  // by profile name, nanoseconds: of what the functions' time is a part
  std::map<std::string, int64_t> effective_samples;  // by profile name: (sum of weights)² / sum of squared weights
  std::vector<ReportedContainer> containers;
  std::vector<ReportedSink> sinks;
  bool operator==(const JobReport&) const = default;
};

struct NodeSamplerReportStatus {
  std::string incarnation;
  std::string boot_id;
  std::map<std::string, JobReport> jobs;  // by job id
  bool operator==(const NodeSamplerReportStatus&) const = default;
};

struct NodeSamplerReport {
  ObjectMeta metadata;
  NodeSamplerReportStatus status;
  bool operator==(const NodeSamplerReport&) const = default;
};

// ---- Names -----------------------------------------------------------------------------------------------------------------

// "namespace/name/uid" of the session.
std::string JobId(std::string_view namespace_name, std::string_view name, std::string_view uid);

// A label key as the profile carries it: each character outside [A-Za-z0-9_] becomes '_'.
std::string ProfileLabelName(std::string_view key);
// Whether the key is, or becomes in a profile, one of those that say where a profile comes from, or starts with "__".
bool ReservedLabel(std::string_view key);
// "service_name, namespace, …" for messages.
std::string ReservedLabelList();

}  // namespace borescope::api
