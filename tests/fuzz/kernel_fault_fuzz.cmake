# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(kernel_fault SOURCES kernel_fault_fuzz.cc PRIVATE borescope::sampler_guard)
