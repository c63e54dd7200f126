// SPDX-License-Identifier: Apache-2.0
// names_resolve FILE [--debug FILE] [--alt FILE] [--dwp FILE] [--memory BYTES]: reads addresses (hexadecimal, one a line), writes for each a line of JSON:
// {"frames":[[function,file,line,start line,name for people],…],"symbol":name or null}; a last line says what kept names away and what it took.
#include <fcntl.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "sampler/symbols/debug_info.h"
#include "sampler/symbols/demangle.h"

using namespace borescope;
using symbols::ElfFile;

static std::shared_ptr<ElfFile> OpenElf(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return nullptr;
  auto source = symbols::OpenSource(std::move(fd));
  if (!source.ok()) return nullptr;
  auto elf = ElfFile::Parse(*std::move(source));
  if (!elf.ok()) {
    std::fprintf(stderr, "%s: %s\n", path.c_str(), elf.error().message.c_str());
    return nullptr;
  }
  return *std::move(elf);
}

int main(int argc, char** argv) {
  std::map<std::string, std::string> options;
  for (int i = 2; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  auto open_option = [&](const char* name) { return options.count(name) ? OpenElf(options[name]) : nullptr; };
  auto main_file = argc > 1 ? OpenElf(argv[1]) : nullptr;
  if (!main_file) {
    std::fprintf(stderr, "error: no file\n");
    return 2;
  }
  auto debug = open_option("--debug"), alt = open_option("--alt"), dwp = open_option("--dwp");
  symbols::DebugLimits limits;
  if (options.count("--memory")) limits.memory_bytes = std::strtoull(options["--memory"].c_str(), nullptr, 10);
  symbols::DebugFiles files{main_file.get(), debug.get(), alt.get(), [&](std::string_view name, std::string_view directory, uint64_t) {
                              if (dwp) return dwp;
                              return OpenElf(name.starts_with('/') ? std::string(name) : std::string(directory) + "/" + std::string(name));
                            }};
  auto information = symbols::DebugInfo::Open(files, limits);
  if (!information.ok()) {
    std::fprintf(stderr, "error: %s\n", information.error().message.c_str());
    return 1;
  }
  size_t most = 0;
  std::string line;
  while (std::getline(std::cin, line)) {
    uint64_t address = std::strtoull(line.c_str(), nullptr, 16);
    nlohmann::json out = {{"frames", nlohmann::json::array()}, {"symbol", nullptr}};
    auto frames = (*information)->Find(address);
    if (!frames.ok()) {
      out["error"] = frames.error().message;
    } else {
      for (const auto& f : *frames) out["frames"].push_back({f.function, f.file, f.line, f.start_line, symbols::DisplayName(f.function)});
    }
    if (auto symbol = main_file->FindSymbol(address)) out["symbol"] = symbol->name;
    most = std::max(most, (*information)->memory_bytes());
    std::cout << out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  nlohmann::json end = {{"problem", (*information)->problem()},
                        {"most_bytes", most},
                        {"max_rss_kib", usage.ru_maxrss},
                        {"cpu_us", usage.ru_utime.tv_sec * 1000000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_sec * 1000000 + usage.ru_stime.tv_usec}};
  std::cout << end.dump() << "\n";
}
