# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(push_json SOURCES push_json_fuzz.cc PRIVATE borescope::common_codec)
