// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "cli/cluster/commands.h"
#include "cli/cluster/completion.h"
#include "cli/profile_command.h"

namespace borescope::cli {
namespace {

const std::vector<std::string> kOutputs = {"table", "html", "pprof", "collapsed", "json", "name"};

// Examples first: that is what people look for.
constexpr char kProfileExamples[] = R"(Examples, in a cluster:
  PROGRAM profile deploy/checkout                          30 s at 99 Hz, top functions
  PROGRAM profile pod/web-0 -c app --duration 60s -o html  and the flame graph as one file
  PROGRAM profile sts/db -o pprof | go tool pprof -top -   for other tools
  PROGRAM profile job/import --dry-run                     which pods, is there a sampler
Examples, on this machine (root):
  PROGRAM profile --pid 1234 --duration 10s -o app.pb.gz
  PROGRAM profile --frequency 199 -- ./my-program --its-flags
  PROGRAM profile --all --format html -o node.html

Exit code: 0 done, 1 nothing was sampled, 2 it cannot be done.
)";
constexpr char kExamples[] = R"(Examples:
  PROGRAM profile deploy/checkout      where its CPU time goes, 30 s from now
  PROGRAM list -A                      sessions and what they found
  PROGRAM open checkout-5f2a1          the flame graph of one
  PROGRAM share checkout-5f2a1         five lines for the incident's channel

)";

std::string Named(std::string text, const std::string& program) {
  constexpr std::string_view kWord = "PROGRAM";
  for (size_t at = text.find(kWord); at != text.npos; at = text.find(kWord, at)) text.replace(at, kWord.size(), program);
  return text;
}

void AddClusterFlags(CLI::App* app, ClusterFlags* flags, bool store) {
  app->add_option("-n,--namespace", flags->ns, "Namespace (default: the context's)")->type_name("NS")->group("Cluster");
  app->add_option("--context", flags->context, "Context of the kubeconfig (default: the current one)")->type_name("NAME")->group("Cluster");
  app->add_option("--kubeconfig", flags->kubeconfig, "Kubeconfig (default: $KUBECONFIG, else ~/.kube/config)")->type_name("FILE")->group("Cluster");
  if (store) {
    app->add_option("--store-namespace", flags->store_namespace, "Namespace of Borescope's store")->type_name("NS")->capture_default_str()->group("Cluster");
  }
}

void AddOutput(CLI::App* app, std::string* output, const std::vector<std::string>& allowed) {
  std::string text;
  for (const std::string& name : allowed) text += (text.empty() ? "" : "|") + name;
  app->add_option("-o,--output", *output, text)->check(CLI::IsMember(allowed))->type_name("FORMAT")->capture_default_str();
}

// What may stand in place of the last word, as kubectl asks its plugins: one a line, then ":" and 4 (no file names) or 6 (nor a space).
int Complete(CLI::App* app, ClusterFlags flags, const std::vector<std::string>& words) {
  const std::string word = words.empty() ? "" : words.back(), before = words.size() > 1 ? words[words.size() - 2] : "";
  for (size_t i = 0; i + 2 < words.size(); ++i) {
    if (words[i] == "-n" || words[i] == "--namespace") flags.ns = words[i + 1];
    if (words[i] == "--context") flags.context = words[i + 1];
    if (words[i] == "--kubeconfig") flags.kubeconfig = words[i + 1];
  }
  std::vector<std::string> found;
  CLI::App* sub = nullptr;
  for (CLI::App* each : app->get_subcommands([](CLI::App*) { return true; })) {
    if (words.size() > 1 && each->get_name() == words[0]) sub = each;
  }
  auto keep = [&](const std::string& candidate) {
    if (candidate.starts_with(word)) found.push_back(candidate);
  };
  if (words.size() <= 1) {
    for (CLI::App* each : app->get_subcommands([](CLI::App*) { return true; })) keep(each->get_name());
  } else if (sub != nullptr && word.starts_with("-")) {
    for (const CLI::Option* option : sub->get_options()) {
      for (const std::string& long_name : option->get_lnames()) keep("--" + long_name);
    }
  } else if (before == "-o" || before == "--output") {
    for (const std::string& output : kOutputs) keep(output);
  } else if (sub != nullptr && sub->get_name() == "completion") {
    for (const char* shell : {"bash", "zsh", "fish"}) keep(shell);
  } else if (sub != nullptr && sub->get_name() == "profile") {
    found = CompleteTarget(flags, word);
  } else if (sub != nullptr && sub->get_option_no_throw("name") != nullptr) {
    found = CompleteSession(flags, word);
  }
  for (const std::string& candidate : found) std::printf("%s\n", candidate.c_str());
  std::printf(":%d\n", !found.empty() && found[0].ends_with('/') ? 6 : 4);
  return 0;
}

int Main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  // As kubectl's plugin or by its own name.
  std::string_view called = argc > 0 ? argv[0] : "borescope";
  called = called.substr(called.rfind('/') + 1);
  ClusterFlags flags;
  if (called.starts_with("kubectl")) flags.program = "kubectl borescope";

  CLI::App app{"borescope: profiles running programs in any language, without touching them"};
  app.name(flags.program);
  app.require_subcommand(1);
  app.description(Named(kExamples, flags.program) + app.get_description());

  ProfileOptions local;
  SessionOptions session;
  std::string output;
  CLI::App* profile = app.add_subcommand("profile", "Sample a workload of the cluster, or processes of this machine: top functions");
  profile->description(Named(kProfileExamples, flags.program));
  profile->add_option("target", session.target, "pod/NAME, deploy/NAME, sts/NAME, ds/NAME, rs/NAME or job/NAME")->type_name("");
  profile->add_option("--duration", local.duration, "How long, as 10s or 1m (default: 30s in a cluster; here the manifest's, else 10s, or until COMMAND ends)");
  profile->add_option("--frequency", local.frequency, "Samples a second on each busy CPU, 1 to 999 (default: 99, or the manifest's)")->check(CLI::Range(1, 999));
  profile->add_option("--top", local.top, "Rows of the table")->check(CLI::Range(1, 1000))->capture_default_str();
  profile->add_option("-o,--output", output, "In a cluster: table, html, pprof, collapsed, json or name (does not wait). Here: write the profile to this FILE")
      ->type_name("FORMAT|FILE");
  profile->add_option("-c,--container", session.containers, "Container, init containers too; may be repeated (default: all)")
      ->type_name("NAME")->allow_extra_args(false)->group("Cluster");
  profile->add_option("--kind", session.kind, "cpu, wall, offCPU, locks, memory or threads; what the samplers cannot take is refused")
      ->type_name("KIND")->capture_default_str()->group("Cluster");
  profile->add_option("--output-file", session.output_file, "Write what -o names to FILE, and print the table")->type_name("FILE")->group("Cluster");
  profile->add_flag("--dry-run", session.dry_run, "Which pods, how they are found, which nodes lack a sampler; makes nothing")->group("Cluster");
  AddClusterFlags(profile, &flags, true);
  profile->add_option("--pid", local.pids, "Process to sample, with its threads and children; may be repeated")->type_name("PID")->group("This machine");
  profile->add_flag("--all", local.all, "Sample every process")->group("This machine");
  profile->add_option("-f,--file", local.session_file, "A ProfilingSession manifest; the flags here take the place of its target")->type_name("FILE")->group("This machine");
  profile->add_option("--format", local.format, "Of the FILE: pprof (gzip, for go tool pprof), collapsed, or html (a flame graph in one file)")
      ->check(CLI::IsMember({"pprof", "collapsed", "html"}))->capture_default_str()->group("This machine");
  profile->add_option("--samples", local.samples_file, "Write every sample to FILE, one JSON object a line")->type_name("FILE")->group("This machine");
  profile->add_flag("--explain", local.explain, "Say for each executable which stacks are cut, why, and what would mend it")->group("This machine");
  profile->add_option("--unwind-memory", local.unwind_memory_mib, "Kernel memory for unwind tables, in MiB")
      ->check(CLI::Range(4, 4096))->capture_default_str()->group("This machine");
  profile->add_option("--kernel-override", local.kernel_overrides, "Sample although the kernel has this fault (the refusal names it); may be repeated")
      ->type_name("NAME")->allow_extra_args(false)->group("This machine");

  std::string name;
  bool all_namespaces = false;
  std::string list_output = "table", stop_output = "table", top_output = "table";
  CLI::App* list = app.add_subcommand("list", "Sessions: what they found, what they cost");
  list->add_flag("-A,--all-namespaces", all_namespaces, "Of all namespaces");
  AddOutput(list, &list_output, {"table", "json", "name"});
  AddClusterFlags(list, &flags, false);

  auto named = [&](const char* verb, const char* text, bool store) {
    CLI::App* sub = app.add_subcommand(verb, text);
    sub->add_option("name", name, "Session")->required()->type_name("");
    AddClusterFlags(sub, &flags, store);
    return sub;
  };
  CLI::App* top = named("top", "The top functions of a session, live while it runs", false);
  top->add_option("--top", session.top, "Rows of the table")->check(CLI::Range(1, 1000))->capture_default_str();
  AddOutput(top, &top_output, {"table", "json"});
  CLI::App* open = named("open", "The flame graph of a session in a browser, or the file to open", true);
  CLI::App* share = named("share", "Five lines of Markdown for the incident's channel", false);
  CLI::App* stop = named("stop", "End a session now; what it has is kept", false);
  AddOutput(stop, &stop_output, {"table", "json"});
  CLI::App* rerun = named("rerun", "The same session once more", true);
  rerun->add_option("--duration", session.duration, "How long, as 10s or 1m (default: as it was)");
  rerun->add_option("--frequency", session.frequency, "Samples a second on each busy CPU, 1 to 999 (default: as it was)")->check(CLI::Range(1, 999));
  rerun->add_option("--top", session.top, "Rows of the table")->check(CLI::Range(1, 1000))->capture_default_str();
  AddOutput(rerun, &session.output, kOutputs);
  rerun->add_option("--output-file", session.output_file, "Write what -o names to FILE, and print the table")->type_name("FILE");
  rerun->add_flag("--dry-run", session.dry_run, "Which pods, how they are found, which nodes lack a sampler; makes nothing");

  std::string shell;
  CLI::App* completion = app.add_subcommand("completion", "The completion script of a shell; kubectl needs kubectl_complete-borescope on PATH instead");
  completion->add_option("shell", shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}))->type_name("");

  if (called == "kubectl_complete-borescope") return Complete(&app, flags, {argv + 1, argv + argc});
  if (argc > 1 && std::string_view(argv[1]) == "__complete") return Complete(&app, flags, {argv + 2, argv + argc});

  // What follows "--" is a command to start, whatever it looks like.
  int ours = 1;
  while (ours < argc && std::string_view(argv[ours]) != "--") ++ours;
  for (int i = ours + 1; i < argc; ++i) local.command.emplace_back(argv[i]);
  try {
    app.parse(ours, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (*completion) {
    std::fputs(CompletionScript(shell).data(), stdout);
    return 0;
  }
  if (*list) return RunList(flags, all_namespaces, list_output);
  if (*top) return RunTop(flags, name, top_output, session.top);
  if (*open) return RunOpen(flags, name);
  if (*share) return RunShare(flags, name);
  if (*stop) return RunStop(flags, name, stop_output);
  if (*rerun) {
    session.target = name;
    return RunRerun(flags, session);
  }
  if (session.target.empty()) {
    local.output = output;
    return RunProfile(local);
  }
  auto refuse = [](const std::string& message) {
    std::fprintf(stderr, "error: %s\n", message.c_str());
    return 2;
  };
  if (local.all || !local.pids.empty() || !local.command.empty() || !local.session_file.empty() || !local.samples_file.empty() || local.explain) {
    return refuse(session.target + " is a target in a cluster; leave out --pid, --all, -f, --samples, --explain and what follows --, or the target");
  }
  session.output = output.empty() ? "table" : output;
  if (std::find(kOutputs.begin(), kOutputs.end(), session.output) == kOutputs.end()) {
    return refuse("-o: found \"" + session.output + "\"; give table, html, pprof, collapsed, json or name, and a file with --output-file");
  }
  session.duration = local.duration;
  session.frequency = local.frequency;
  session.top = local.top;
  return RunSession(flags, session);
}

}  // namespace
}  // namespace borescope::cli

int main(int argc, char** argv) { return borescope::cli::Main(argc, argv); }
