// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <csignal>

#include "cli/profile_command.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app{"borescope: profiles running programs in any language, without touching them"};
  app.require_subcommand(1);

  borescope::cli::ProfileOptions options;
  CLI::App* profile = app.add_subcommand("profile", "Sample processes of this machine and print their top functions");
  profile->add_option("-f,--file", options.session_file, "A ProfilingSession manifest; the flags below take the place of its target")->type_name("FILE");
  profile->add_option("--pid", options.pids, "Process to sample, with its threads and children; may be repeated")->type_name("PID");
  profile->add_flag("--all", options.all, "Sample every process");
  profile->add_option("--duration", options.duration, "How long, as 10s, 500ms or 1m (default: the manifest's, else 10s, or until COMMAND ends)");
  profile->add_option("--frequency", options.frequency, "Samples a second on each busy CPU, 1 to 999 (default: the manifest's, else 99)")
      ->check(CLI::Range(1, 999));
  profile->add_option("-o,--output", options.output, "Write the profile to FILE")->type_name("FILE");
  profile->add_option("--format", options.format, "pprof (gzip, for go tool pprof) or collapsed (for flame graphs)")
      ->check(CLI::IsMember({"pprof", "collapsed"}))
      ->capture_default_str();
  profile->add_option("--samples", options.samples_file, "Write every sample to FILE, one JSON object a line")->type_name("FILE");
  profile->add_flag("--explain", options.explain, "Say for each executable which stacks are cut, why, and what would mend it");
  profile->add_option("--unwind-memory", options.unwind_memory_mib, "Kernel memory for unwind tables, in MiB")->check(CLI::Range(4, 4096))->capture_default_str();
  profile->add_option("--kernel-override", options.kernel_overrides, "Sample although the kernel has this fault (the refusal names it); may be repeated")->type_name("NAME")->allow_extra_args(false);
  profile->add_option("--top", options.top, "Rows of the table")->check(CLI::Range(1, 1000))->capture_default_str();
  profile->add_option("command", options.command, "-- COMMAND ARGS: start a program and sample it")->type_name("");
  profile->footer("Example: borescope profile --pid 1234 --duration 10s -o app.pb.gz && go tool pprof -top app.pb.gz");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return borescope::cli::RunProfile(options);
}
