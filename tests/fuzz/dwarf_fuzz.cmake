# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(dwarf SOURCES dwarf_fuzz.cc PRIVATE borescope::sampler_symbols ZLIB::ZLIB PkgConfig::LIBZSTD)
