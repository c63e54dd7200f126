# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(names_wire SOURCES names_wire_fuzz.cc PRIVATE borescope::sampler_naming)
