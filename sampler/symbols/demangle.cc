// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/demangle.h"

#include <llvm/Demangle/Demangle.h>

#include <cstdlib>
#include <cstring>

#include "common/base/strings.h"

namespace borescope::symbols {
namespace {

constexpr size_t kMaxMangled = 4096;  // the demangler's time and depth grow with its input; longer names are shown as they are

// "core::ptr::drop_in_place::h0123456789abcdef" without the hash.
void DropRustHash(std::string& name) {
  constexpr size_t kLength = 3 + 16;
  if (name.size() <= kLength) return;
  size_t at = name.size() - kLength;
  if (name.compare(at, 3, "::h") != 0) return;
  if (name.find_first_not_of("0123456789abcdef", at + 3) != std::string::npos) return;
  name.resize(at);
}

// Rust's legacy scheme writes what Itanium names cannot hold as $LT$, $u20$, "..".
void UndoRustEscapes(std::string& name) {
  static constexpr struct {
    std::string_view code, text;
  } kCodes[] = {{"$SP$", "@"}, {"$BP$", "*"}, {"$RF$", "&"}, {"$LT$", "<"}, {"$GT$", ">"}, {"$LP$", "("}, {"$RP$", ")"}, {"$C$", ","}};
  std::string out;
  for (size_t i = 0; i < name.size();) {
    if (name[i] == '.' && name.compare(i, 2, "..") == 0) {
      out += "::";
      i += 2;
      continue;
    }
    if (name[i] == '_' && name.compare(i, 2, "_$") == 0 && (i == 0 || name[i - 1] == ':')) {
      ++i;  // a component may not begin with "$": an underscore stands before it
      continue;
    }
    if (name[i] == '$') {
      bool done = false;
      for (const auto& [code, text] : kCodes) {
        if (name.compare(i, code.size(), code) == 0) {
          out += text;
          i += code.size();
          done = true;
          break;
        }
      }
      if (done) continue;
      size_t end = name.find('$', i + 1);
      if (end != std::string::npos && end - i >= 3 && end - i <= 4 && name[i + 1] == 'u') {
        auto value = ParseUint(std::string_view(name).substr(i + 2, end - i - 2), 16);
        if (value && *value >= 0x20 && *value < 0x7f) {
          out += static_cast<char>(*value);
          i = end + 1;
          continue;
        }
      }
    }
    out += name[i++];
  }
  name = std::move(out);
}

bool IsRustHashed(std::string_view mangled) {
  // _ZN…17h<16 hex>E
  if (mangled.size() < 24 || !mangled.starts_with("_ZN") || mangled.back() != 'E') return false;
  std::string_view tail = mangled.substr(mangled.size() - 20, 19);
  return tail.starts_with("17h") && tail.find_first_not_of("0123456789abcdef", 3) == std::string_view::npos;
}

// Takes what the LLVM demangler gives (malloc'ed) as a string.
std::string Own(char* text) {
  std::string out = text ? text : "";
  std::free(text);
  return out;
}

// Qualified name of an Itanium-mangled function without parameters and return type; "" when it cannot be taken apart.
std::string ItaniumName(const std::string& mangled) {
  llvm::ItaniumPartialDemangler demangler;
  if (demangler.partialDemangle(mangled.c_str())) return "";
  if (!demangler.isFunction()) return Own(demangler.finishDemangle(nullptr, nullptr));
  return Own(demangler.getFunctionName(nullptr, nullptr));
}

// The same when LLVM does not understand the types behind the name, as some of gcc's (IXsr…) and those of clang's generic lambdas ($_0): they are not read.
std::string NameBeforeTypes(const std::string& mangled) { return Own(llvm::itaniumDemangle(mangled, /*ParseParams=*/false)); }

}  // namespace

std::string DisplayName(std::string_view symbol) {
  std::string name(symbol);
  if (symbol.size() <= kMaxMangled && symbol.find('\0') == std::string_view::npos) {
    if (symbol.starts_with("_Z")) {
      // Without ".cold", ".part.0", ".llvm.123": pieces of one function. Rust has dots within its names: the first prefix that is whole.
      std::string_view mangled = symbol;
      std::string demangled = IsRustHashed(symbol) ? ItaniumName(name) : "";
      size_t dot = 0;
      for (int tries = 0; tries < 16 && demangled.empty() && dot != std::string_view::npos; ++tries) {
        dot = symbol.find('.', dot + 1);
        mangled = symbol.substr(0, dot);
        demangled = ItaniumName(std::string(mangled));
      }
      if (demangled.empty()) demangled = NameBeforeTypes(name);
      if (!demangled.empty()) {
        name = std::move(demangled);
        if (IsRustHashed(mangled)) {
          DropRustHash(name);
          UndoRustEscapes(name);
        }
      }
    } else if (symbol.starts_with("_R")) {
      std::string demangled = Own(llvm::rustDemangle(std::string_view(name)));
      if (!demangled.empty()) name = std::move(demangled);
    }
  }
  return SanitizeName(name);
}

}  // namespace borescope::symbols
