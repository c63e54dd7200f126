# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=page.inc -DFOLDER=page -P embed.cmake: the files of the page as constants.
set(text "// made by embed.cmake\n#pragma once\n#include <string_view>\nnamespace borescope::codec {\n")
foreach(part Html=page.html Style=page.css Script=page.js)
  string(REGEX MATCH "^(.*)=(.*)$" _ "${part}")
  set(name "${CMAKE_MATCH_1}")
  file(READ "${FOLDER}/${CMAKE_MATCH_2}" content)
  string(APPEND text "inline constexpr std::string_view kPage${name} = R\"__page__(${content})__page__\";\n")
endforeach()
string(APPEND text "}  // namespace borescope::codec\n")
file(WRITE "${OUT}" "${text}")
