// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "common/profile/profile.h"

namespace borescope::testing {

// SEED from the environment repeats a run; printed once.
inline uint64_t Seed() {
  static uint64_t seed = [] {
    const char* text = getenv("SEED");
    uint64_t s = text != nullptr ? strtoull(text, nullptr, 10) : std::random_device{}();
    printf("SEED=%llu\n", static_cast<unsigned long long>(s));
    return s;
  }();
  return seed;
}

// A CPU profile with kernel and user mappings, inlined, unsymbolized and labelled parts.
inline profile::Profile RandomProfile(std::mt19937_64& random, int samples, int functions = 200, int depth = 20) {
  profile::Profile p;
  p.sample_types = {{"samples", "count"}, {"cpu", "nanoseconds"}};
  p.period_type = {"cpu", "nanoseconds"};
  p.period = 10'101'010;
  p.time_ns = 1'790'000'000'000'000'000;
  p.duration_ns = 10'000'000'000;
  p.default_sample_type = "cpu";
  p.comments = {"by a test"};
  std::vector<uint32_t> mappings = {
      p.AddMapping({0x400000, 0x900000, 0x1000, "/usr/bin/app", "00ff" + std::to_string(random() % 1000), true, false, false}),
      p.AddMapping({0x7f0000000000, 0x7f0000200000, 0, "/lib/libc.so.6", "abcdef", true, false, false}),
      p.AddMapping({0xffffffff80000000, 0xffffffffffffffff, 0, "[kernel.kallsyms]", "", true, false, false})};
  std::vector<uint32_t> frames;
  for (int i = 0; i < functions; ++i) {
    uint32_t mapping = mappings[random() % mappings.size()];
    profile::Location location{mapping, p.mappings()[mapping].start + random() % 0x100000, {}};
    for (uint64_t lines = random() % 3; lines > 0; --lines) {
      std::string name = "ns::function_" + std::to_string(random() % 500) + "(int, ü)";
      location.lines.push_back({p.AddFunction({name, "_Z" + name, random() % 2 ? "/src/a.cc" : "", static_cast<int64_t>(random() % 90)}),
                                static_cast<int64_t>(random() % 900)});
    }
    frames.push_back(p.AddLocation(location));
  }
  for (int i = 0; i < samples; ++i) {
    std::vector<uint32_t> stack;
    for (uint64_t d = 1 + random() % static_cast<uint64_t>(depth); d > 0; --d) stack.push_back(frames[random() % frames.size()]);
    std::map<std::string, std::string> labels;
    if (random() % 4 == 0) labels["thread"] = "worker-" + std::to_string(random() % 3);
    std::vector<int64_t> values{1, static_cast<int64_t>(random() % 20'000'000)};
    p.AddSample(stack, values, labels);
  }
  return p;
}

}  // namespace borescope::testing
