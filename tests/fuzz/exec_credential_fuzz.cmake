# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(exec_credential SOURCES exec_credential_fuzz.cc PRIVATE borescope::common_kube)
