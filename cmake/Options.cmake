# SPDX-License-Identifier: Apache-2.0
option(BORESCOPE_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
set(BORESCOPE_SANITIZE "" CACHE STRING "Value of -fsanitize= for everything, or empty")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
# "Dev" is quick to compile and has assertions of the standard library on.
set(CMAKE_CXX_FLAGS_DEV "-O1 -g1 -D_GLIBCXX_ASSERTIONS" CACHE STRING "" FORCE)
set(CMAKE_C_FLAGS_DEV "-O1 -g1" CACHE STRING "" FORCE)

# We are profiled by ourselves: frame pointers always.
add_compile_options(-Wall -Wextra -Werror -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>) # g++ 12 at -O3 warns of its own std::string
endif()
if(BORESCOPE_SANITIZE)
  add_compile_options(-fsanitize=${BORESCOPE_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${BORESCOPE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>) # false in <regex> when instrumented
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL Clang)
  add_compile_options(-Wno-deprecated-declarations) # clang 19 warns of std::stable_sort as libstdc++ 12 has it
endif()
if(BORESCOPE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD AND NOT CMAKE_CROSSCOMPILING) # the cross compiler finds none of its own
  add_link_options(-fuse-ld=mold)
endif()
