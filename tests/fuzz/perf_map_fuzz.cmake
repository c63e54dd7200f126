# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(perf_map SOURCES perf_map_fuzz.cc PRIVATE borescope::sampler_symbols)
