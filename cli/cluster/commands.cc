// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/cluster/follow.h"
#include "cli/cluster/preview.h"
#include "cli/cluster/render.h"
#include "cli/cluster/sessions.h"
#include "cli/cluster/target.h"
#include "cli/text/duration.h"
#include "cli/text/table.h"
#include "common/api/json.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/strings.h"
#include "common/codec/collapsed.h"
#include "common/codec/html.h"
#include "common/codec/pprof.h"

extern char** environ;

namespace borescope::cli {
namespace {

using nlohmann::json;

constexpr int kDone = 0, kNothing = 1, kCannot = 2;
// For a profile: the store may be slow, and there is nothing to show without it.
constexpr int64_t kAfterEndForProfileNs = 30'000'000'000;

int Fail(const Error& error, int code = kCannot) {
  fmt::print(stderr, "error: {}\n", error.message);
  return code;
}

bool IsProfile(const std::string& output) { return output == "html" || output == "pprof" || output == "collapsed"; }

std::string HtmlOf(const api::ProfilingSession& session, const profile::Profile& profile) {
  codec::HtmlPage page;
  page.title = DescribeTarget(session.spec.target);
  page.facts.push_back(fmt::format("namespace {}", session.metadata.namespace_name));
  page.facts.push_back(fmt::format("session {}", session.metadata.name));
  page.facts.push_back(FormatTime(session.status.start_time));
  page.notes.push_back(RenderAccount(session, 100'000));
  page.wall_seconds = static_cast<double>(session.status.end_time - session.status.start_time) / 1e9;
  return codec::EncodeHtml(profile, profile.DefaultValue(), page);
}

Result<std::string> ProfileBytes(Cluster& cluster, const api::ProfilingSession& session, const std::string& format) {
  ASSIGN_OR_RETURN(std::string bytes, FetchPprof(cluster, session, ""));
  if (format == "pprof") return bytes;
  codec::PprofLimits limits{.max_bytes = 256 << 20, .max_samples = 1'000'000, .max_table = 4'000'000};
  auto profile = codec::DecodePprof(bytes, limits);
  if (!profile.ok()) return profile.error().WithContext("the store's profile is not understood");
  if (format == "collapsed") return codec::EncodeCollapsed(*profile, profile->DefaultValue());
  return HtmlOf(session, *profile);
}

// Starts a program and forgets it; false when it is not there.
bool Spawn(const char* program, const std::string& argument) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  char* argv[] = {const_cast<char*>(program), const_cast<char*>(argument.c_str()), nullptr};
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, program, &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return failed == 0;
}

bool HasDisplay() {
  auto set = [](const char* name) { return std::getenv(name) != nullptr && *std::getenv(name) != '\0'; };
  return set("DISPLAY") || set("WAYLAND_DISPLAY");
}

Status Print(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size() || std::fflush(stdout) != 0) return ErrnoError("standard output");
  return OkStatus();
}

// Text to standard output, or to --output-file.
int Deliver(const SessionOptions& options, const std::string& text) {
  Status status = options.output_file.empty() ? Print(text) : WriteFileAtomically(options.output_file, text);
  return status.ok() ? kDone : Fail(status.error().WithContext("--output-file"));
}

int DeliverProfile(Cluster& cluster, const SessionOptions& options, const api::ProfilingSession& session, const std::string& table) {
  auto bytes = ProfileBytes(cluster, session, options.output);
  if (!bytes.ok()) {
    // The table is there without the store.
    if (!options.output_file.empty() || ::isatty(STDOUT_FILENO) == 1) (void)Print(table);
    return Fail(bytes.error());
  }
  std::string file = options.output_file;
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  if (file.empty() && terminal && options.output != "collapsed") file = session.metadata.name + (options.output == "html" ? ".html" : ".pb.gz");
  if (file.empty()) {
    Status status = Print(*bytes);
    return status.ok() ? kDone : Fail(status.error());
  }
  if (Status status = WriteFileAtomically(file, *bytes); !status.ok()) return Fail(status.error());
  const char* hint = options.output == "pprof" ? " (open it with: go tool pprof -http=: FILE)" : "";
  const bool opened = options.output == "html" && terminal && HasDisplay() && Spawn("xdg-open", file);
  Status status = Print(table + fmt::format("Profile: {}{}{}\n", file, hint, opened ? ", opened" : ""));
  return status.ok() ? kDone : Fail(status.error());
}

int Conclude(Cluster& cluster, const SessionOptions& options, const Followed& followed) {
  const api::ProfilingSession& session = followed.session;
  const auto& conditions = session.status.conditions;
  const std::string& name = session.metadata.name;
  if (followed.ending == Ending::kDeleted) return Fail({ErrorCode::kNotFound, "session " + name + " was deleted while it ran; what it had published stays in the store"}, kNothing);
  const api::Condition* accepted = api::FindCondition(conditions, "Accepted");
  const api::Condition* failed = api::IsTrue(conditions, "Failed") ? api::FindCondition(conditions, "Failed") : nullptr;
  if (options.output == "json") {
    if (int code = Deliver(options, followed.json); code != kDone) return code;
  }
  if (accepted != nullptr && accepted->status == "False") {
    return Fail({ErrorCode::kInvalid, SanitizeName(accepted->reason + ": " + accepted->message, 1200)}, accepted->reason == "Stopped" ? kNothing : kCannot);
  }
  if (session.status.samples.collected == 0) {
    if (failed != nullptr) return Fail({ErrorCode::kUnavailable, SanitizeName(failed->reason + ": " + failed->message, 1200)}, kNothing);
    return Fail({ErrorCode::kNotFound, fmt::format("no samples in {}: the pods used {} of CPU; choose busy ones (kubectl top pods -n {}), a longer --duration or a higher --frequency",
                                                   FormatSeconds(static_cast<double>(session.status.end_time - session.status.start_time) / 1e9),
                                                   FormatSeconds(static_cast<double>(session.status.cpu.used_ns) / 1e9), cluster.ns())},
                kNothing);
  }
  std::string table = RenderSession(session, TerminalWidth(), static_cast<size_t>(options.top));
  if (followed.ending == Ending::kLate) table += "The session is not finished yet: these are its figures so far.\n";
  int code = kDone;
  if (IsProfile(options.output)) {
    code = DeliverProfile(cluster, options, session, table);
  } else if (options.output == "table") {
    table += "Flame graph: " + cluster.Command("open", name) + "\n";
    code = Deliver(options, table);
  }
  return code != kDone ? code : failed != nullptr ? kNothing : kDone;
}

int RunSpec(Cluster& cluster, const SessionOptions& options, const std::string& base, const json& spec) {
  CatchInterrupt();
  auto made = CreateSession(cluster, NewSessionName(base), spec, options.dry_run);
  if (!made.ok()) return Fail(made.error());
  if (options.dry_run) {
    if (options.output == "json") return Deliver(options, made->json);
    auto preview = Preview(cluster, made->session, TerminalWidth());
    if (!preview.ok()) return Fail(preview.error());
    const int code = Deliver(options, preview->text);
    return code != kDone ? code : preview->possible ? kDone : kCannot;
  }
  const std::string& name = made->session.metadata.name;
  if (options.output == "name") return Deliver(options, fmt::format("profilingsession.{}/{}\n", api::kGroup, name));
  FollowOptions follow;
  if (IsProfile(options.output)) follow.after_end_ns = kAfterEndForProfileNs;
  auto followed = Follow(cluster, name, follow);
  if (!followed.ok()) return Fail(followed.error());
  return Conclude(cluster, options, *followed);
}

// What --duration and --frequency say, in place of what stands in `spec`.
Status Override(const SessionOptions& options, json& spec) {
  if (!options.duration.empty()) {
    ASSIGN_OR_RETURN(int64_t ns, ParseDuration(options.duration));
    if (ns % 1'000'000'000 != 0) return Error{ErrorCode::kInvalid, "--duration: found \"" + options.duration + "\"; in a cluster give whole seconds, 1s to 1h"};
    spec["durationSeconds"] = ns / 1'000'000'000;
  }
  if (options.frequency > 0) {
    for (json& profile : spec["profiles"]) {
      for (const char* kind : {"cpu", "wall"}) {
        if (profile.is_object() && profile.contains(kind)) profile[kind]["frequencyHertz"] = options.frequency;
      }
    }
  }
  return OkStatus();
}

}  // namespace

int RunSession(const ClusterFlags& flags, const SessionOptions& options) {
  auto target = ParseTarget(options.target);
  if (!target.ok()) return Fail(target.error());
  auto kind = api::ProfileKindFromName(options.kind);
  if (!kind) return Fail({ErrorCode::kInvalid, "--kind: found \"" + SanitizeName(options.kind) + "\"; give one of cpu, wall, offCPU, locks, memory, threads"});
  api::ProfilingSession session;
  session.spec.target = *target;
  session.spec.target.container_names = options.containers;
  session.spec.duration_seconds = 30;
  api::Profile& profile = session.spec.profiles[0];  // cpu
  profile.kind = *kind;
  profile.frequency_hertz = *kind == api::ProfileKind::kCpu || *kind == api::ProfileKind::kWall ? api::DefaultFrequencyHertz(*kind) : 0;
  if (*kind != api::ProfileKind::kCpu) {
    std::string name = options.kind;
    for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    profile.name = name;
  }
  json spec = api::ToJson(session)["spec"];
  if (Status status = Override(options, spec); !status.ok()) return Fail(status.error());
  auto cluster = Cluster::Open(flags);
  if (!cluster.ok()) return Fail(cluster.error());
  const std::string& base = target->workload_ref ? target->workload_ref->name : target->pod_name;
  return RunSpec(**cluster, options, base, spec);
}

int RunRerun(const ClusterFlags& flags, const SessionOptions& options) {
  auto cluster = Cluster::Open(flags);
  if (!cluster.ok()) return Fail(cluster.error());
  auto earlier = GetSession(**cluster, options.target);
  if (!earlier.ok()) return Fail(earlier.error());
  // As the server has it, so that fields that this program does not know stay.
  json spec = json::parse(earlier->json, nullptr, false)["spec"];
  spec.erase("desiredState");
  if (Status status = Override(options, spec); !status.ok()) return Fail(status.error());
  return RunSpec(**cluster, options, options.target, spec);
}

int RunList(const ClusterFlags& flags, bool all_namespaces, const std::string& output) {
  auto cluster = Cluster::Open(flags);
  if (!cluster.ok()) return Fail(cluster.error());
  auto list = ListSessions(**cluster, all_namespaces);
  if (!list.ok()) return Fail(list.error());
  if (output == "json") {
    Status status = Print(list->json);
    return status.ok() ? kDone : Fail(status.error());
  }
  std::string text;
  if (output == "name") {
    for (const auto& session : list->sessions) text += fmt::format("profilingsession.{}/{}\n", api::kGroup, session.metadata.name);
  } else if (list->sessions.empty()) {
    fmt::print(stderr, "No sessions{}; make one: {} profile deploy/NAME\n", all_namespaces ? "" : " in namespace " + (*cluster)->ns() + " (-A: all namespaces)",
               flags.program);
  } else {
    text = RenderList(std::move(list->sessions), NowNs(CLOCK_REALTIME), all_namespaces, TerminalWidth());
  }
  Status status = Print(text);
  return status.ok() ? kDone : Fail(status.error());
}

int RunStop(const ClusterFlags& flags, const std::string& name, const std::string& output) {
  auto cluster = Cluster::Open(flags);
  if (!cluster.ok()) return Fail(cluster.error());
  auto before = GetSession(**cluster, name);
  if (!before.ok()) return Fail(before.error());
  const bool over = api::IsTrue(before->session.status.conditions, "Finished");
  auto stopped = over ? std::move(before) : StopSession(**cluster, name);
  if (!stopped.ok()) return Fail(stopped.error());
  std::string text = stopped->json;
  if (output != "json") {
    text = over ? fmt::format("session {} had ended already ({})\n", name, stopped->session.status.phase ? PhaseName(*stopped->session.status.phase) : "Finished")
                : fmt::format("session {} is stopped\nWhat it has: {}\n", name, (*cluster)->Command("top", name));
  }
  Status status = Print(text);
  return status.ok() ? kDone : Fail(status.error());
}

int RunTop(const ClusterFlags& flags, const std::string& name, const std::string& output, int rows) {
  auto cluster = Cluster::Open(flags);
  if (!cluster.ok()) return Fail(cluster.error());
  // Its first look says what is wrong at once; a watch would go on trying.
  auto now = GetSession(**cluster, name);
  if (!now.ok()) return Fail(now.error());
  CatchInterrupt();
  FollowOptions follow;
  follow.stop_on_interrupt = false;
  follow.stream = stdout;
  follow.draw = [&](const api::ProfilingSession& session, int64_t now_ns, size_t width) {
    std::vector<std::string> lines = RenderProgress(session, now_ns, width, 0);
    lines.resize(1);
    std::string table = RenderSession(session, width, static_cast<size_t>(rows));
    for (std::string_view line : Split(table, '\n')) lines.emplace_back(line);
    lines.pop_back();
    return lines;
  };
  const bool live = output != "json" && ::isatty(STDOUT_FILENO) == 1;
  if (!live) follow.enough = [](const api::ProfilingSession& session) { return !session.status.top.empty(); };
  auto followed = Follow(**cluster, name, follow);
  if (!followed.ok()) return Fail(followed.error());
  SessionOptions options{.output = output, .top = rows};
  return Conclude(**cluster, options, *followed);
}

int RunOpen(const ClusterFlags& flags, const std::string& name) {
  auto cluster = Cluster::Open(flags);
  if (!cluster.ok()) return Fail(cluster.error());
  auto stored = GetSession(**cluster, name);
  if (!stored.ok()) return Fail(stored.error());
  auto html = ProfileBytes(**cluster, stored->session, "html");
  if (!html.ok()) return Fail(html.error());
  const char* temporary = std::getenv("TMPDIR");
  std::string folder = std::string(temporary != nullptr && *temporary != '\0' ? temporary : "/tmp") + "/borescope-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return Fail(ErrnoError("make " + folder));
  const std::string file = folder + "/" + stored->session.metadata.name + ".html";
  if (Status status = WriteFileAtomically(file, *html, 0600); !status.ok()) return Fail(status.error());
  const bool opened = HasDisplay() && Spawn("xdg-open", file);
  fmt::print("{}\n", file);
  if (!opened) fmt::print(stderr, "Open that file in a browser; it needs no network.\n");
  return kDone;
}

int RunShare(const ClusterFlags& flags, const std::string& name) {
  auto cluster = Cluster::Open(flags);
  if (!cluster.ok()) return Fail(cluster.error());
  auto stored = GetSession(**cluster, name);
  if (!stored.ok()) return Fail(stored.error());
  Status status = Print(RenderShare(stored->session, (*cluster)->Command("open", name)));
  return status.ok() ? kDone : Fail(status.error());
}

}  // namespace borescope::cli
