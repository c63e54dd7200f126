# SPDX-License-Identifier: Apache-2.0
# bpf_object(NAME): compiles bpf/NAME.bpf.c for the BPF target and makes NAME.skel.h; link to the target NAME_skel to include it.
find_program(BPF_CLANG clang-19 REQUIRED)
find_program(BPFTOOL bpftool PATHS /usr/sbin REQUIRED)
find_program(BPF_STRIP llvm-strip-19 REQUIRED)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64")
  set(BPF_ARCH x86)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(BPF_ARCH arm64)
endif()

function(bpf_object name)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${name}.bpf.c)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.bpf.o)
  set(skeleton ${CMAKE_CURRENT_BINARY_DIR}/${name}.skel.h)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.h) # only what a change must rebuild
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${BPF_CLANG} -g -O2 -target bpf -mcpu=v3 -D__TARGET_ARCH_${BPF_ARCH} -Wall -Wextra -Wno-unused-parameter -Werror
            -I${CMAKE_CURRENT_SOURCE_DIR} -I${CMAKE_SOURCE_DIR}
            -idirafter ${CMAKE_SYSROOT}/usr/include/${CMAKE_LIBRARY_ARCHITECTURE} -c ${source} -o ${object}
    COMMAND ${BPF_STRIP} -g ${object}
    DEPENDS ${source} ${headers}
    VERBATIM)
  add_custom_command(
    OUTPUT ${skeleton}
    COMMAND ${BPFTOOL} gen skeleton ${object} name ${name}_bpf > ${skeleton}
    DEPENDS ${object})
  add_custom_target(${name}_skel_header DEPENDS ${skeleton})
  add_library(${name}_skel INTERFACE)
  add_dependencies(${name}_skel ${name}_skel_header)
  target_include_directories(${name}_skel SYSTEM INTERFACE ${CMAKE_CURRENT_BINARY_DIR})
  target_link_libraries(${name}_skel INTERFACE PkgConfig::LIBBPF)
endfunction()
