// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/kallsyms.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>

#include "common/base/fd.h"
#include "common/base/strings.h"

namespace borescope::symbols {
namespace {

constexpr size_t kMaxEntries = 1 << 20;
constexpr size_t kMaxPool = 64 << 20;
constexpr uint64_t kMaxGap = 1 << 20;  // a pc further behind the last symbol of its area is not that function

}  // namespace

class Kallsyms::Builder {
 public:
  Builder() { out_.pool_.push_back('\0'); }

  // "ffffffff81000000 T _stext\t[module]"
  void AddLine(std::string_view line) {
    size_t first = line.find(' ');
    if (first == std::string_view::npos || first + 3 >= line.size() || line[first + 2] != ' ') return;
    auto address = ParseUint(line.substr(0, first), 16);
    if (!address) return;
    char type = line[first + 1];
    if (type != 't' && type != 'T' && type != 'w' && type != 'W') return;
    ++text_symbols_;
    if (*address == 0) return;
    std::string_view name = line.substr(first + 3), module;
    if (size_t tab = name.find('\t'); tab != std::string_view::npos) {
      module = name.substr(tab + 1);
      name = name.substr(0, tab);
      if (module.size() > 2 && module.front() == '[' && module.back() == ']') module = module.substr(1, module.size() - 2);
    }
    if (name.empty() || name.size() > 512 || module.size() > 64 || line.find('\0') != std::string_view::npos) return;
    if (module.empty()) {
      if (name == "_stext") out_.text_start_ = *address;
      if (name == "_etext") out_.text_end_ = *address;
    }
    if (out_.entries_.size() >= kMaxEntries || out_.pool_.size() + name.size() + 1 > kMaxPool) return;
    uint32_t at = static_cast<uint32_t>(out_.pool_.size());
    out_.pool_ += name;
    out_.pool_ += '\0';
    out_.entries_.push_back({*address, at, ModuleOffset(module)});
  }

  Result<Kallsyms> Finish() {
    if (out_.entries_.empty()) {
      if (text_symbols_ > 0) {
        return Error{ErrorCode::kDenied,
                     "kallsyms shows only zero addresses: kernel frames have no names; give the sampler CAP_SYSLOG and set "
                     "kernel.kptr_restrict to 0 or 1"};
      }
      return Error{ErrorCode::kInvalid, "kallsyms holds no text symbol"};
    }
    auto& entries = out_.entries_;
    const std::string& pool = out_.pool_;
    auto name = [&](const Entry& e) { return std::string_view(pool.data() + e.name); };
    std::sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
      if (a.address != b.address) return a.address < b.address;
      // of aliases the plain and short one: "entry_SYSCALL_64" before "__pi_…", markers such as "_stext" last
      auto rank = [&](std::string_view n) { return n.find_first_not_of('_'); };
      auto x = name(a), y = name(b);
      if (rank(x) != rank(y)) return rank(x) < rank(y);
      return x.size() != y.size() ? x.size() < y.size() : x < y;
    });
    entries.erase(std::unique(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.address == b.address; }),
                  entries.end());
    if (out_.text_start_ == 0) out_.text_start_ = entries.front().address;
    if (out_.text_end_ <= out_.text_start_) {
      for (const Entry& e : entries) {
        if (e.module == 0) out_.text_end_ = std::max(out_.text_end_, e.address + 1);
      }
    }
    entries.shrink_to_fit();
    out_.pool_.shrink_to_fit();
    return std::move(out_);
  }

 private:
  uint32_t ModuleOffset(std::string_view module) {
    if (module.empty()) return 0;
    auto [it, added] = modules_.try_emplace(std::string(module), static_cast<uint32_t>(out_.pool_.size()));
    if (added) {
      out_.pool_ += module;
      out_.pool_ += '\0';
    }
    return it->second;
  }

  Kallsyms out_;
  std::unordered_map<std::string, uint32_t> modules_;
  size_t text_symbols_ = 0;
};

Result<Kallsyms> Kallsyms::Parse(std::string_view text) {
  Builder builder;
  while (!text.empty()) {
    size_t end = text.find('\n');
    builder.AddLine(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return builder.Finish();
}

Result<Kallsyms> Kallsyms::Load(const std::string& proc_root) {
  std::string path = proc_root + "/kallsyms";
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError("open " + path);
  Builder builder;
  std::string part(1 << 16, '\0');
  size_t held = 0;
  while (true) {
    ssize_t got = read(fd.get(), part.data() + held, part.size() - held);
    if (got < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("read " + path);
    }
    if (got == 0) break;
    size_t have = held + static_cast<size_t>(got), begin = 0;
    while (true) {
      size_t end = part.find('\n', begin);
      if (end == std::string::npos || end >= have) break;
      builder.AddLine(std::string_view(part).substr(begin, end - begin));
      begin = end + 1;
    }
    held = have - begin;
    if (held == part.size()) held = 0;  // a line longer than the buffer is no symbol
    std::copy(part.begin() + static_cast<ptrdiff_t>(begin), part.begin() + static_cast<ptrdiff_t>(begin + held), part.begin());
  }
  return builder.Finish();
}

std::optional<Kallsyms::Found> Kallsyms::Find(uint64_t address) const {
  auto it = std::upper_bound(entries_.begin(), entries_.end(), address, [](uint64_t a, const Entry& e) { return a < e.address; });
  if (it == entries_.begin()) return std::nullopt;
  --it;
  if (address - it->address > kMaxGap) return std::nullopt;
  // behind the end of the kernel's text lie data and, far away, modules: no function
  if (it->module == 0 && it->address <= text_end_ && address >= text_end_) return std::nullopt;
  Found found;
  found.name = pool_.data() + it->name;
  found.module = pool_.data() + it->module;
  found.start = it->address;
  return found;
}

size_t Kallsyms::memory_bytes() const { return entries_.capacity() * sizeof(Entry) + pool_.capacity(); }

}  // namespace borescope::symbols
