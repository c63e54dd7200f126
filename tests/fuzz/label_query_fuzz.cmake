# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(label_query SOURCES label_query_fuzz.cc PRIVATE borescope::store_query borescope::store_db)
