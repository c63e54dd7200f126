# SPDX-License-Identifier: Apache-2.0
# A folder is a module is one target: its name is the folder's path with "_", its alias borescope::<the same>.

# What a sanitizer or a fuzzer needs of a build: less than all.
add_custom_target(unit_tests)
add_custom_target(fuzzers)

# borescope_library(NAME SOURCES a.cc ... [PUBLIC target ...] [PRIVATE target ...])
function(borescope_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  if(arg_SOURCES)
    add_library(${name} STATIC ${arg_SOURCES})
    set(scope PUBLIC)
    target_link_libraries(${name} PRIVATE ${arg_PRIVATE})
  else()
    add_library(${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(borescope::${name} ALIAS ${name})
  target_include_directories(${name} ${scope} ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} ${scope} ${arg_PUBLIC})
endfunction()

# borescope_program(NAME SOURCES main.cc ... PRIVATE target ...): build/PRESET/bin/NAME
function(borescope_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;PRIVATE" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_PRIVATE})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
endfunction()

# borescope_test(NAME SOURCES x_test.cc ... PRIVATE target ...): one test program a module, needs no privilege, label "unit".
function(borescope_test name)
  if(BORESCOPE_FUZZ)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;PRIVATE" ${ARGN})
  add_executable(${name}_test ${arg_SOURCES})
  target_link_libraries(${name}_test PRIVATE ${arg_PRIVATE} GTest::gmock GTest::gtest GTest::gtest_main)
  target_include_directories(${name}_test PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/tests/support)
  set_target_properties(${name}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_dependencies(unit_tests ${name}_test)
  add_test(NAME ${name} COMMAND ${name}_test --gtest_shuffle)
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 300)
endfunction()

# borescope_fuzzer(NAME SOURCES x_fuzz.cc PRIVATE target ...): build/fuzz/fuzz/NAME; corpus in tests/fuzz/corpus/NAME.
function(borescope_fuzzer name)
  if(NOT BORESCOPE_FUZZ)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;PRIVATE" ${ARGN})
  add_executable(${name}_fuzz ${arg_SOURCES})
  target_link_libraries(${name}_fuzz PRIVATE ${arg_PRIVATE})
  target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
  target_include_directories(${name}_fuzz PRIVATE ${CMAKE_SOURCE_DIR})
  add_dependencies(fuzzers ${name}_fuzz)
  set_target_properties(${name}_fuzz PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
endfunction()
