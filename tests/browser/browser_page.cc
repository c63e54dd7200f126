// SPDX-License-Identifier: Apache-2.0
// browser-page FRAMES SEED FOLDER URL: a drawn profile with about so many frames in its graph, as FOLDER/page.html and FOLDER/stacks.txt.
// Some of its names try to get out of the page, and to URL.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/codec/collapsed.h"
#include "common/codec/html.h"

int main(int argc, char** argv) {
  using namespace borescope;
  if (argc != 5) return 2;
  const size_t frames = std::strtoull(argv[1], nullptr, 10);
  std::mt19937_64 random(std::strtoull(argv[2], nullptr, 10));
  const std::string folder = argv[3], url = argv[4];
  profile::Profile p;
  p.sample_types = {{"samples", "count"}, {"cpu", "nanoseconds"}};
  p.default_sample_type = "cpu";
  p.duration_ns = 30'000'000'000;
  const uint32_t mapping = p.AddMapping({.start = 0x400000, .limit = 0x800000, .file_offset = 0, .filename = "/usr/bin/shop", .build_id = "ab"});
  std::vector<uint32_t> locations;
  auto add = [&](const std::string& name) {
    const uint64_t at = locations.size();
    locations.push_back(p.AddLocation({mapping, 0x400000 + at, {{p.AddFunction({name, name, "/src/shop/file" + std::to_string(at % 50) + ".cc", 0}), static_cast<int64_t>(at + 1)}}}));
  };
  add("</script><script>document.title='taken'</script><img src=" + url + "/a onerror=document.title='taken'>");
  add("<img src=" + url + "/b>\"'`${document.title='taken'}");
  add("<!--<script>document.title='taken'//");
  for (int i = 0; i < 600; ++i) add("shop::Part" + std::to_string(i % 40) + "::step" + std::to_string(i) + "(int, std::string const&)");
  // A random tree: each stack goes on from a place of an earlier one.
  std::vector<std::vector<uint32_t>> stacks{{locations[3]}};
  for (size_t made = 1; made < frames;) {
    std::vector<uint32_t> stack = stacks[random() % stacks.size()];
    stack.resize(1 + random() % stack.size());
    for (size_t more = 1 + random() % 8; more > 0 && stack.size() < 60; --more, ++made) stack.push_back(locations[random() % locations.size()]);
    stacks.push_back(stack);
  }
  for (const auto& stack : stacks) {
    const int64_t count = 1 + static_cast<int64_t>(random() % 50 * (random() % 50) / 40);
    p.AddSample(std::vector<uint32_t>(stack.rbegin(), stack.rend()), std::vector<int64_t>{count, count * 10'000'000});
  }
  auto write = [&](const char* name, const std::string& text) {
    Status status = WriteFileAtomically(folder + "/" + name, text);
    if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.error().message.c_str());
    return status.ok();
  };
  const bool ok = write("page.html", codec::EncodeHtml(p, 1, {.title = "deploy/<b>shop", .facts = {"namespace </title></script><img src=" + url + "/e>"}, .notes = {"<img src=" + url + "/c>"}, .wall_seconds = 30})) &&
                  write("stacks.txt", codec::EncodeCollapsed(p, 1));
  return ok ? 0 : 1;
}
