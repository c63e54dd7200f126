# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(kallsyms SOURCES kallsyms_fuzz.cc PRIVATE borescope::sampler_symbols)
