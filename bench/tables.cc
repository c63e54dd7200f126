// SPDX-License-Identifier: Apache-2.0
//
// bench-tables --compiler PROGRAM [--cache FOLDER] FILE...: arms the engine, asks for the unwind tables of all files, as the sampler does for the files of a
// process, and prints as JSON how long it took until they stood where the programs look for them, and what they take.
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/mapped.h"
#include "common/base/clock.h"
#include "sampler/engine/engine.h"
#include "sampler/symbols/files.h"
#include "sampler/unwind/tables.h"

namespace borescope {
namespace {

int Fail(const Error& error) {
  std::fprintf(stderr, "bench-tables: %s\n", error.message.c_str());
  return 2;
}

int Run(const std::vector<std::string>& paths, const std::string& compiler, const std::string& folder) {
  auto engine = engine::Engine::Open({});
  if (!engine.ok()) return Fail(engine.error());
  unwind::Tables::Options options;
  options.memory = &(*engine)->table_memory();
  options.compiler = compiler;
  options.cache_directory = folder;
  auto tables = unwind::Tables::Create(std::move(options));
  if (!tables.ok()) return Fail(tables.error());
  symbols::FileCache cache("/proc", paths.size() + 16);

  const int64_t start = NowNs(CLOCK_MONOTONIC), boot = NowNs(CLOCK_BOOTTIME);
  auto job = (*engine)->AddJob({.frequency_hz = 99, .start_boot_ns = boot, .deadline_boot_ns = boot + 60'000'000'000});
  if (!job.ok()) return Fail(job.error());
  if (auto status = (*engine)->AddProcess(*job, ::getpid()); !status.ok()) return Fail(status.error());
  const int64_t armed = NowNs(CLOCK_MONOTONIC);
  std::vector<std::pair<unwind_file_key, std::shared_ptr<symbols::MappedFile>>> waiting;
  for (const auto& path : paths) {
    auto file = bench::Map(cache, path);
    if (!file || !file->elf) return Fail({ErrorCode::kInvalid, path + ": " + (file ? file->problem : "cannot be mapped")});
    unwind_file_key key{};
    key.inode = file->opened_id.inode;
    key.size = file->version.bytes;
    key.mtime_sec = file->version.mtime_sec;
    key.device = file->opened_id.device_major << 20 | file->opened_id.device_minor;
    waiting.emplace_back(key, file);
  }
  while (true) {
    bool pending = false;
    for (const auto& [key, file] : waiting) pending |= (*tables)->Want(key, file) == unwind::Tables::State::kPending;
    if (!pending) break;
    pollfd wake{(*tables)->wake_fd(), POLLIN, 0};
    ::poll(&wake, 1, 1000);
    (*tables)->Poll();
  }
  const int64_t ready = NowNs(CLOCK_MONOTONIC);
  nlohmann::json out = {{"armed_ms", static_cast<double>(armed - start) / 1e6}, {"ready_ms", static_cast<double>(ready - start) / 1e6},
                        {"compile_cpu_ms", static_cast<double>((*tables)->stats().compile_cpu_ns) / 1e6},
                        {"chunk_bytes", (*tables)->stats().chunk_bytes}, {"files", nlohmann::json::array()}};
  for (const auto& file : (*tables)->files()) {
    out["files"].push_back({{"path", file.path}, {"bytes", file.bytes}, {"rows", file.rows}, {"unsupported", file.unsupported_rows}, {"placed", file.placed}, {"problem", file.problem}});
  }
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace borescope

int main(int argc, char** argv) {
  CLI::App app("How long unwind tables take until they are there, and what they take.");
  std::string compiler, cache;
  std::vector<std::string> paths;
  app.add_option("--compiler", compiler, "borescope-unwind-tables")->required();
  app.add_option("--cache", cache, "Folder that keeps tables");
  app.add_option("file", paths, "ELF files")->required();
  CLI11_PARSE(app, argc, argv);
  return borescope::Run(paths, compiler, cache);
}
