# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(pprof SOURCES pprof_fuzz.cc PRIVATE borescope::common_codec)
