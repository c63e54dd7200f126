# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(push SOURCES push_fuzz.cc PRIVATE borescope::common_codec)
