# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(go_table SOURCES go_table_fuzz.cc PRIVATE borescope::sampler_unwind)
