# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(watch_stream SOURCES watch_stream_fuzz.cc PRIVATE borescope::common_kube)
