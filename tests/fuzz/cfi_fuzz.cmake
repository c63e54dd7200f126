# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(cfi SOURCES cfi_fuzz.cc PRIVATE borescope::sampler_symbols)
