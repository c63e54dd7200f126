# SPDX-License-Identifier: Apache-2.0
borescope_fuzzer(unwind SOURCES unwind_fuzz.cc PRIVATE borescope::sampler_unwind)

# The same with a read past the end of the stack planted in the unwinder: `scripts/test --long fuzz` wants it found.
if(BORESCOPE_FUZZ)
  add_executable(unwind_planted unwind_fuzz.cc ${CMAKE_SOURCE_DIR}/sampler/unwind/recorded.cc)
  target_compile_definitions(unwind_planted PRIVATE BORESCOPE_PLANTED_FAULT)
  target_link_libraries(unwind_planted PRIVATE borescope::sampler_unwind)
  target_link_options(unwind_planted PRIVATE -fsanitize=fuzzer)
  set_target_properties(unwind_planted PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  add_dependencies(fuzzers unwind_planted)
endif()
