# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(proc_maps SOURCES proc_maps_fuzz.cc PRIVATE borescope::sampler_symbols)
