// SPDX-License-Identifier: Apache-2.0
#include "common/profile/library.h"

#include <gtest/gtest.h>

namespace borescope::profile {

void PrintTo(FrameKind kind, std::ostream* out) { *out << static_cast<int>(kind); }

namespace {

using enum FrameKind;

FrameKind Named(std::string_view name, std::string_view system_name = "", std::string_view mapping = "/srv/app", std::string_view source = "") {
  return Classify({name, system_name, source, mapping});
}

TEST(LibraryTest, MappingsByNameWhateverTheVersion) {
  for (const char* path : {"/lib/x86_64-linux-gnu/libc.so.6", "/lib/libc-2.31.so", "/usr/lib/libcrypto.so.3", "/venv/libcrypto-4b8a1f00.so.1.1", "/lib64/ld-linux-x86-64.so.2",
                           "/lib/ld-2.31.so", "/lib/ld-musl-x86_64.so.1", "/usr/lib/libstdc++.so.6.0.30", "/usr/lib/libpcre2-8.so.0", "/opt/java/lib/server/libjvm.so",
                           "[kernel.kallsyms]", "[vdso]", "[nf_tables]", "/root/.rustup/lib/libstd-0123456789abcdef.so"}) {
    EXPECT_EQ(Named("f", "", path), kLibrary) << path;
  }
  for (const char* path : {"/srv/app", "/srv/libpricing.so", "/srv/libcart.so.1", "/srv/libc-tools.so", "/srv/libcrypto", "//anon", "[anon:jit]", "[heap]", "/usr/lib/libzebra.so", ""}) {
    EXPECT_EQ(Named("f", "", path), kApplication) << path;
  }
}

TEST(LibraryTest, FunctionsOfTheStandardLibraryThatStandInTheProgram) {
  EXPECT_EQ(Named("std::vector<app::Row>::push_back", "_ZNSt6vectorIN3app3RowEE9push_backEOS1_"), kLibrary);
  EXPECT_EQ(Named("operator new", "_Znwm"), kLibrary);
  EXPECT_EQ(Named("app::std::f", "_ZN3app3std1fEv"), kApplication);
  EXPECT_EQ(Named("core::Engine::step", "_ZN4core6Engine4stepEv"), kApplication) << "C++, not Rust";
  EXPECT_EQ(Named("stdlike::f", "_ZN7stdlike1fEv"), kApplication);
  EXPECT_EQ(Named("f", "", "/srv/app", "/usr/include/c++/12/bits/stl_algo.h"), kLibrary);
  EXPECT_EQ(Named("f", "", "/srv/app", "/src/usr/stl_algo.h"), kApplication);
  EXPECT_EQ(Named("malloc"), kLibrary);
  EXPECT_EQ(Named("malloc.constprop.0"), kLibrary);
  EXPECT_EQ(Named("malloc_report"), kApplication);
  EXPECT_EQ(Named("__memcpy_avx_unaligned_erms"), kLibrary);
  EXPECT_EQ(Named("memcpy@plt"), kLibrary);
  EXPECT_EQ(Named("app::memcpy", "_ZN3app6memcpyEv"), kApplication);
}

TEST(LibraryTest, RustByTheCrateOfTheType) {
  constexpr const char* kHashed = "_ZN4core3fmt5write17h0123456789abcdefE";
  EXPECT_EQ(Named("core::fmt::write", kHashed), kLibrary);
  EXPECT_EQ(Named("<alloc::vec::Vec<app::Row> as core::clone::Clone>::clone", "_RNvX"), kLibrary);
  EXPECT_EQ(Named("<app::Row as core::fmt::Display>::fmt", "_RNvX"), kApplication);
  EXPECT_EQ(Named("<&mut app::Rows as core::iter::traits::iterator::Iterator>::next", "_RNvX"), kApplication);
  EXPECT_EQ(Named("<u64 as core::fmt::Display>::fmt", "_RNvX"), kLibrary);
  EXPECT_EQ(Named("app::run::{{closure}}", "_RNvX"), kApplication);
  EXPECT_EQ(Named("stdx::run", "_RNvX"), kApplication);
}

TEST(LibraryTest, GoByThePackage) {
  for (const char* name : {"runtime.mallocgc", "sort.insertionSort_func", "encoding/json.(*decodeState).object", "regexp.(*machine).step", "strings.Index", "type:.eq.main.T"}) {
    EXPECT_EQ(Named(name), kLibrary) << name;
  }
  for (const char* name : {"main.hot", "github.com/a/b.(*T).Run", "sortedmap.Get", "example.com/runtime.X"}) EXPECT_EQ(Named(name), kApplication) << name;
  EXPECT_EQ(Named("sort.part.0"), kApplication) << "a piece of a C function";
}

TEST(LibraryTest, EntriesCutsAndCodeMadeAtRunTime) {
  EXPECT_EQ(Named("_start"), kEntry);
  EXPECT_EQ(Named("start_thread", "", "/lib/libc.so.6"), kEntry);
  EXPECT_EQ(Named("runtime.goexit"), kEntry);
  EXPECT_EQ(Named("[truncated: x]", "", ""), kCut);
  EXPECT_EQ(Named("Ljava/util/HashMap;::get", "", "//anon"), kLibrary);
  EXPECT_EQ(Named("Lshop/Orders;::get", "", "//anon"), kApplication);
  EXPECT_EQ(Named("JS:*discount /srv/pricing.js:3:1", "", "//anon"), kApplication);
}

}  // namespace
}  // namespace borescope::profile
