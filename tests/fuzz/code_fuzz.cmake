# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(code SOURCES code_fuzz.cc PRIVATE borescope::sampler_unwind)
