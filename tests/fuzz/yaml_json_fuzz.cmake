# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(yaml_json SOURCES yaml_json_fuzz.cc PRIVATE borescope::common_kube)
