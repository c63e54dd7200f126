// SPDX-License-Identifier: Apache-2.0
#include "common/profile/library.h"

#include <algorithm>
#include <string_view>

namespace borescope::profile {
namespace {

enum class Language { kC, kCxx, kRust, kGo, kJit };
using enum Language;

struct NameRow {
  Language language;
  bool prefix;  // else the whole name; of Rust and Go the crate, the package
  std::string_view text;
};

constexpr std::string_view kFiles[] = {
#define LIBRARY_FILE(name) name,
#define LIBRARY_SOURCE(part)
#define LIBRARY_PREFIX(language, text)
#define LIBRARY_NAME(language, text)
#define LIBRARY_ENTRY(name)
#include "common/profile/library_rows.inc"
#undef LIBRARY_FILE
#undef LIBRARY_SOURCE
#define LIBRARY_FILE(name)
#define LIBRARY_SOURCE(part) part,
};
constexpr std::string_view kSources[] = {
#include "common/profile/library_rows.inc"
#undef LIBRARY_SOURCE
#undef LIBRARY_PREFIX
#undef LIBRARY_NAME
#define LIBRARY_SOURCE(part)
#define LIBRARY_PREFIX(language, text) {language, true, text},
#define LIBRARY_NAME(language, text) {language, false, text},
};
constexpr NameRow kNames[] = {
#include "common/profile/library_rows.inc"
#undef LIBRARY_PREFIX
#undef LIBRARY_NAME
#undef LIBRARY_ENTRY
#define LIBRARY_PREFIX(language, text)
#define LIBRARY_NAME(language, text)
#define LIBRARY_ENTRY(name) name,
};
constexpr std::string_view kEntries[] = {
#include "common/profile/library_rows.inc"
};

std::string_view BaseName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool IsHex(std::string_view s) { return s.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

bool IsLibraryFile(std::string_view mapping) {
  if (IsAnonymous(mapping)) return false;
  if (mapping[0] == '[') return true;  // the kernel, a module of it, the vDSO
  std::string_view name = BaseName(mapping);
  if (name.find(".so") == std::string_view::npos) return false;
  return std::ranges::any_of(kFiles, [&](std::string_view row) {
    if (!name.starts_with(row)) return false;
    std::string_view rest = name.substr(row.size());
    // After a "-" a version or the like: "libz-1.2.so", "libcrypto-4b8a.so", and not "libc-tools.so".
    return rest.starts_with('.') || (rest.starts_with('-') && rest.size() > 1 && (rest[1] >= '0' && rest[1] <= '9')) ||
           (rest.starts_with('-') && IsHex(rest.substr(1, rest.find('.') - 1))) ||
           (!rest.empty() && rest[0] >= '0' && rest[0] <= '9');
  });
}

bool IsRust(const FrameText& frame) {
  if (frame.system_name.starts_with("_R") || frame.source.ends_with(".rs")) return true;
  // _ZN…17h<16 hex>E
  std::string_view s = frame.system_name.substr(0, frame.system_name.find('.'));
  return s.starts_with("_ZN") && s.size() > 24 && s.ends_with('E') && s.substr(s.size() - 20).starts_with("17h") && IsHex(s.substr(s.size() - 17, 16));
}

// The crate of a Rust function: "app" of "app::run", of "<app::Row as core::fmt::Display>::fmt" and of "<&mut app::Row>::next". Where the
// type is a built-in one, that of the trait.
std::string_view RustCrate(std::string_view name) {
  for (;;) {
    if (name.starts_with("mut ") || name.starts_with("dyn ")) {
      name.remove_prefix(4);
    } else if (name.starts_with("impl ")) {
      name.remove_prefix(5);
    } else if (name.starts_with("const ")) {
      name.remove_prefix(6);
    } else if (!name.empty() && std::string_view("<&*[( ").find(name[0]) != std::string_view::npos) {
      name.remove_prefix(1);
    } else {
      break;
    }
  }
  size_t end = name.find_first_of(":<> ,;[])&");
  std::string_view crate = name.substr(0, end);
  if (end == std::string_view::npos || name.substr(end).starts_with("::") || name[end] == '[') return crate;
  size_t as = name.find(" as ");
  return as == std::string_view::npos ? crate : RustCrate(name.substr(as + 4));
}

// "part.0", "constprop.1", "cold", …: gcc's and clang's names for pieces and copies of a function.
std::string_view WithoutClone(std::string_view name) {
  for (std::string_view mark : {".part.", ".constprop.", ".isra.", ".cold", ".lto_priv.", ".llvm.", ".localalias"}) name = name.substr(0, name.find(mark));
  return name;
}

bool IsLibraryName(const FrameText& frame) {
  std::string_view name = WithoutClone(frame.name);
  if (name.ends_with("@plt")) return true;
  Language language = kC;
  std::string_view whole = name;
  if (IsAnonymous(frame.mapping)) {
    language = kJit;
  } else if (IsRust(frame)) {
    language = kRust;
    whole = RustCrate(name);
  } else if (name.find("::") != std::string_view::npos || frame.system_name.starts_with("_Z") || name.starts_with("operator ")) {
    language = kCxx;
  } else if (name.find('.') != std::string_view::npos) {
    language = kGo;
    whole = name.substr(0, name.find_first_of("./"));
  }
  return std::ranges::any_of(kNames, [&](const NameRow& row) {
    if (row.language != language) return false;
    return row.prefix ? name.starts_with(row.text) : whole == row.text;
  });
}

}  // namespace

bool IsAnonymous(std::string_view mapping) {
  return mapping.empty() || mapping.starts_with("//anon") || mapping.starts_with("[anon") || mapping == "[heap]" || mapping.starts_with("[stack");
}

FrameKind Classify(const FrameText& frame) {
  if (frame.mapping.empty() && frame.name.starts_with("[truncated: ")) return FrameKind::kCut;
  auto is_part = [&](std::string_view row) { return frame.source.find(row) != std::string_view::npos; };
  if (!IsLibraryFile(frame.mapping) && !std::ranges::any_of(kSources, is_part) && !IsLibraryName(frame)) return FrameKind::kApplication;
  return std::ranges::find(kEntries, frame.name) == std::end(kEntries) ? FrameKind::kLibrary : FrameKind::kEntry;
}

}  // namespace borescope::profile
