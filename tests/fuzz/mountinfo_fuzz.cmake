# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(mountinfo SOURCES mountinfo_fuzz.cc PRIVATE borescope::sampler_targets)
