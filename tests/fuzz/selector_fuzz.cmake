# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(selector SOURCES selector_fuzz.cc PRIVATE borescope::store_query borescope::store_db)
