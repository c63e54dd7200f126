// SPDX-License-Identifier: Apache-2.0
//
// bench-names --program borescope-names FILE: reads stacks, one a line, addresses of FILE as linked (hexadecimal), and asks for the names of those that were not
// asked for yet, as the sampler does, with all its limits. A line "all" asks for the stacks before it at once and waits for the last answer, "each" one stack after
// the other. Prints as JSON what each of these took, and what the children took at most.
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <unordered_set>
#include <vector>

#include "bench/mapped.h"
#include "common/base/clock.h"
#include "sampler/naming/names.h"
#include "sampler/symbols/files.h"

namespace borescope {
namespace {

int Fail(const std::string& message) {
  std::fprintf(stderr, "bench-names: %s\n", message.c_str());
  return 2;
}

int64_t OwnCpuNs() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

class Asker {
 public:
  Asker(naming::Names& names, std::shared_ptr<symbols::MappedFile> file) : names_(names), file_(std::move(file)) {}

  nlohmann::json Ask(const std::vector<std::vector<uint64_t>>& stacks, bool one_by_one) {
    counted_ = {};
    const int64_t start = NowNs(CLOCK_MONOTONIC), own = OwnCpuNs(), theirs = names_.stats().cpu_ns;
    for (const auto& stack : stacks) {
      for (uint64_t address : stack) {
        if (!asked_.insert(address).second) continue;
        names_.Ask(file_, address, [] { return naming::Names::Origin{1, {::getpid()}}; });
        ++counted_.addresses;
      }
      if (one_by_one) Wait();
    }
    Wait();
    const double children = static_cast<double>(names_.stats().cpu_ns - theirs) / 1e9;
    return {{"stacks", stacks.size()},     {"addresses", counted_.addresses},
            {"named", counted_.named},     {"with_lines", counted_.with_lines},
            {"functions", counted_.lines}, {"symbols_s", static_cast<double>(counted_.first_ns - start) / 1e9},
            {"seconds", static_cast<double>(NowNs(CLOCK_MONOTONIC) - start) / 1e9},
            {"children_cpu", children},    {"cpu", children + static_cast<double>(OwnCpuNs() - own) / 1e9}};
  }

 private:
  struct Counted {
    uint64_t addresses = 0, named = 0, with_lines = 0, lines = 0;
    int64_t first_ns = 0;  // when the last of the first answers came
  };

  void Wait() {
    while (names_.stats().waiting > 0) {
      pollfd wake{names_.wake_fd(), POLLIN, 0};
      ::poll(&wake, 1, 1000);
      for (const naming::Names::Answer& answer : names_.Take()) {
        if (!seen_.contains(answer.vaddr) && !answer.names.lines.empty()) {
          seen_.insert(answer.vaddr);
          ++counted_.named;
          counted_.first_ns = NowNs(CLOCK_MONOTONIC);
        }
        if (!answer.last) continue;
        counted_.with_lines += answer.names.outcome == naming::Outcome::kLine;
        counted_.lines += answer.names.lines.size();
      }
    }
  }

  naming::Names& names_;
  std::shared_ptr<symbols::MappedFile> file_;
  std::unordered_set<uint64_t> asked_, seen_;
  Counted counted_;
};

int Run(const std::string& path, const std::string& program) {
  auto names = naming::Names::Create({.program = program});
  if (!names.ok()) return Fail(names.error().message);
  symbols::FileCache cache("/proc", 16);
  auto file = bench::Map(cache, path);
  if (!file || !file->elf) return Fail(path + ": " + (file ? file->problem : "cannot be mapped"));
  Asker asker(**names, file);
  nlohmann::json out = {{"parts", nlohmann::json::array()}};
  std::vector<std::vector<uint64_t>> stacks;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "all" || line == "each") {
      out["parts"].push_back(asker.Ask(stacks, line == "each"));
      stacks.clear();
      continue;
    }
    std::istringstream words(line);
    words >> std::hex;
    auto& stack = stacks.emplace_back();
    for (uint64_t address; words >> address;) stack.push_back(address);
  }
  out["peak_bytes"] = (*names)->stats().peak_bytes;
  out["problem"] = "";
  for (const auto& info : (*names)->files()) out["problem"] = info.problem;
  const auto addresses = (*names)->stats().addresses;
  for (size_t i = 0; i < naming::kOutcomes; ++i) {
    if (addresses[i] != 0) out["outcomes"][std::string(naming::OutcomeLabel(static_cast<naming::Outcome>(i)))] = addresses[i];
  }
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  return 0;
}

}  // namespace
}  // namespace borescope

int main(int argc, char** argv) {
  CLI::App app("What names of addresses take.");
  std::string program, path;
  app.add_option("--program", program, "borescope-names")->required();
  app.add_option("file", path, "ELF file")->required();
  CLI11_PARSE(app, argc, argv);
  return borescope::Run(path, program);
}
