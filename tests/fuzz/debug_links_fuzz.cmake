# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(debug_links SOURCES debug_links_fuzz.cc PRIVATE borescope::sampler_naming ZLIB::ZLIB PkgConfig::LIBZSTD)
