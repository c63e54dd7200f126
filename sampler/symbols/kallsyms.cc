// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/kallsyms.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/strings.h"

namespace borescope::symbols {
namespace {

constexpr size_t kMaxEntries = 1 << 20;
constexpr size_t kMaxPool = 64 << 20;
constexpr uint64_t kMaxGap = 1 << 20;  // a pc further behind the last symbol of its area is not that function

}  // namespace

Kallsyms::Kallsyms() { pool_.push_back('\0'); }

// Of aliases the plain and short one: "entry_SYSCALL_64" before "__pi_…", markers such as "_stext" last.
bool Kallsyms::Plainer(const Entry& a, const Entry& b) const {
  auto x = NameOf(a), y = NameOf(b);
  auto rank = [](std::string_view n) { return n.find_first_not_of('_'); };
  if (rank(x) != rank(y)) return rank(x) < rank(y);
  return x.size() != y.size() ? x.size() < y.size() : x < y;
}

uint32_t Kallsyms::ModuleOffset(std::string_view module) {
  if (module.empty()) return 0;
  auto [it, added] = modules_.try_emplace(std::string(module), static_cast<uint32_t>(pool_.size()));
  if (added) {
    pool_ += module;
    pool_ += '\0';
  }
  return it->second;
}

// "ffffffff81000000 T _stext\t[module]"
void Kallsyms::AddLine(std::string_view line) {
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
    if (name == "_stext" && text_start_ == 0) text_start_ = *address;
    if (name == "_etext" && text_end_ == 0 && text_start_ != 0 && *address > text_start_) text_end_ = *address;
  }
  if (entries_.size() >= kMaxEntries || pool_.size() + name.size() + 1 > kMaxPool) return;
  Entry entry{*address, static_cast<uint32_t>(pool_.size()), 0};
  pool_ += name;
  pool_ += '\0';
  entry.module = ModuleOffset(module);
  if (!module.empty() || (!entries_.empty() && entries_.back().address > entry.address)) rising_ = false;
  if (!entries_.empty() && entries_.back().address == entry.address) {
    if (Plainer(entry, entries_.back())) entries_.back() = entry;
  } else {
    entries_.push_back(entry);
  }
}

// Everything was read.
void Kallsyms::Finish() {
  file_.Reset();
  std::string().swap(part_);
  std::stable_sort(entries_.begin(), entries_.end(),
                   [&](const Entry& a, const Entry& b) { return a.address != b.address ? a.address < b.address : Plainer(a, b); });
  entries_.erase(std::unique(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.address == b.address; }), entries_.end());
  if (entries_.empty()) return;
  if (text_start_ == 0) text_start_ = entries_.front().address;
  if (text_end_ == 0) {
    for (const Entry& e : entries_) {
      if (e.module == 0) text_end_ = std::max(text_end_, e.address + 1);
    }
  }
  entries_.shrink_to_fit();
  pool_.shrink_to_fit();
}

Status Kallsyms::CheckEntries() const {
  if (!entries_.empty()) return OkStatus();
  if (text_symbols_ > 0) {
    return Error{ErrorCode::kDenied,
                 "kallsyms shows only zero addresses: kernel frames have no names; give the sampler CAP_SYSLOG and set "
                 "kernel.kptr_restrict to 0 or 1"};
  }
  return Error{ErrorCode::kInvalid, "kallsyms holds no text symbol"};
}

Result<Kallsyms> Kallsyms::Parse(std::string_view text) {
  Kallsyms table;
  while (!text.empty()) {
    size_t end = text.find('\n');
    table.AddLine(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  table.Finish();
  RETURN_IF_ERROR(table.CheckEntries());
  return table;
}

Result<Kallsyms> Kallsyms::Load(const std::string& proc_root) {
  std::string path = proc_root + "/kallsyms";
  Kallsyms table;
  table.file_.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!table.file_.valid()) return ErrnoError("open " + path);
  table.part_.resize(1 << 16);
  // The start of the text stands among the first lines.
  while (table.file_.valid() && (table.text_start_ == 0 || table.entries_.empty())) {
    if (Status s = table.ReadOn(); !s.ok()) return s.error().WithContext(path);
  }
  RETURN_IF_ERROR(table.CheckEntries());
  return table;
}

// Takes what one read() gives: of /proc/kallsyms a page.
Status Kallsyms::ReadOn() {
  ssize_t got = read(file_.get(), part_.data() + held_, part_.size() - held_);
  if (got < 0 && errno == EINTR) return OkStatus();
  Status status = got < 0 ? Status(ErrnoError("read")) : OkStatus();
  if (got <= 0) {
    Finish();
    return status;
  }
  size_t have = held_ + static_cast<size_t>(got), begin = 0;
  while (true) {
    size_t end = part_.find('\n', begin);
    if (end == std::string::npos || end >= have) break;
    AddLine(std::string_view(part_).substr(begin, end - begin));
    begin = end + 1;
  }
  held_ = have - begin;
  if (held_ == part_.size()) held_ = 0;  // a line longer than the buffer is no symbol
  std::copy(part_.begin() + static_cast<ptrdiff_t>(begin), part_.begin() + static_cast<ptrdiff_t>(begin + held_), part_.begin());
  return status;
}

// Nothing that is still to be read can change the answer.
bool Kallsyms::Covers(uint64_t address) const {
  return !file_.valid() || (rising_ && !entries_.empty() && entries_.front().address <= address && address < entries_.back().address);
}

std::optional<Kallsyms::Found> Kallsyms::Find(uint64_t address) {
  while (!Covers(address)) {
    if (!ReadOn().ok()) break;
  }
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

size_t Kallsyms::memory_bytes() const { return entries_.capacity() * sizeof(Entry) + pool_.capacity() + part_.capacity(); }

}  // namespace borescope::symbols
