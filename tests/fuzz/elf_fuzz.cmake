# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(elf SOURCES elf_fuzz.cc PRIVATE borescope::sampler_symbols)
