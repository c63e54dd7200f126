# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(api SOURCES api_fuzz.cc PRIVATE borescope::common_api nlohmann_json::nlohmann_json)
