# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(cfi SOURCES cfi_fuzz.cc PRIVATE borescope::sampler_unwind ZLIB::ZLIB PkgConfig::LIBZSTD)

# The same with a length that is not checked planted in the compiler: `scripts/test --long fuzz` wants it found.
if(BORESCOPE_FUZZ)
  add_executable(cfi_planted cfi_fuzz.cc ${CMAKE_SOURCE_DIR}/sampler/unwind/cfi.cc)
  target_compile_definitions(cfi_planted PRIVATE BORESCOPE_PLANTED_FAULT)
  target_link_libraries(cfi_planted PRIVATE borescope::sampler_unwind ZLIB::ZLIB PkgConfig::LIBZSTD)
  target_link_options(cfi_planted PRIVATE -fsanitize=fuzzer)
  set_target_properties(cfi_planted PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  add_dependencies(fuzzers cfi_planted)
endif()
