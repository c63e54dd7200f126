// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "sampler/symbols/files.h"
#include "sampler/unwind/compiled_table.h"
#include "sampler/unwind/table_memory.h"

namespace borescope::unwind {

inline uint64_t Seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("SEED");
    const uint64_t value = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

// A table with so many rows on average on each of `pages` pages, some of which have none.
inline CompiledTable RandomTable(std::mt19937_64& random, uint32_t pages, uint32_t rows_a_page, uint32_t rules) {
  CompiledTable table;
  table.first_page = static_cast<uint32_t>(random() % 100);
  table.rules.resize(std::max(2u, rules));
  for (size_t i = 1; i < table.rules.size(); ++i) {
    table.rules[i].kind = UNWIND_RULE_FRAME;
    table.rules[i].cfa_reg = 7;
    table.rules[i].cfa_offset = static_cast<int32_t>(i);
  }
  table.page_rows.push_back(0);
  for (uint32_t page = 0; page < pages; ++page) {
    const uint32_t count = random() % 5 == 0 ? 0 : static_cast<uint32_t>(random() % (2 * rows_a_page)) + 1;
    std::vector<uint32_t> offsets;
    for (uint32_t i = 0; i < count; ++i) offsets.push_back(i == 0 ? 0 : static_cast<uint32_t>(random() % 65536));
    std::sort(offsets.begin(), offsets.end());
    offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
    uint32_t rule = 0;
    for (uint32_t offset : offsets) {
      rule = (rule + 1 + static_cast<uint32_t>(random() % (table.rules.size() - 1))) % static_cast<uint32_t>(table.rules.size());
      table.rows.push_back(UNWIND_ROW(offset, rule));
    }
    table.page_rows.push_back(static_cast<uint32_t>(table.rows.size()));
  }
  return table;
}

// What a file made by ElfText tells the compiler of these tests to do.
struct Order {
  char what[16] = {};  // "table", "nothing", "error", "crash", "exit", "loop", "memory", "huge", "lie"
  uint64_t seed = 0;
  uint32_t pages = 0, rows_a_page = 0;
};

inline CompiledTable TableOf(const Order& order) {
  std::mt19937_64 random(order.seed);
  return RandomTable(random, order.pages, order.rows_a_page, 20);
}

// The smallest ELF file with a build id (may be empty) that carries an order at its end.
inline std::string ElfText(const Order& order, const std::string& build_id) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN;
#if defined(__x86_64__)
  header.e_machine = EM_X86_64;
#else
  header.e_machine = EM_AARCH64;
#endif
  header.e_phoff = sizeof(header);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 2;
  std::string note;
  if (!build_id.empty()) {
    Elf64_Nhdr n{4, static_cast<Elf64_Word>(build_id.size()), NT_GNU_BUILD_ID};
    note.append(reinterpret_cast<const char*>(&n), sizeof(n)).append("GNU", 4).append(build_id);
    note.resize((note.size() + 3) & ~size_t{3});
  }
  Elf64_Phdr load{}, notes{};
  load.p_type = PT_LOAD;
  load.p_flags = PF_R | PF_X;
  load.p_filesz = load.p_memsz = 1 << 20;  // all of it
  notes.p_type = PT_NOTE;
  notes.p_offset = sizeof(header) + 2 * sizeof(Elf64_Phdr);
  notes.p_filesz = note.size();
  std::string text(reinterpret_cast<const char*>(&header), sizeof(header));
  text.append(reinterpret_cast<const char*>(&load), sizeof(load)).append(reinterpret_cast<const char*>(&notes), sizeof(notes)).append(note);
  text.append(reinterpret_cast<const char*>(&order), sizeof(order));
  return text;
}

inline Order MakeOrder(const char* what, uint64_t seed = 0, uint32_t pages = 4, uint32_t rows_a_page = 100) {
  Order order;
  std::strncpy(order.what, what, sizeof(order.what) - 1);
  order.seed = seed;
  order.pages = pages;
  order.rows_a_page = rows_a_page;
  return order;
}

// As FileCache gives it.
inline std::shared_ptr<symbols::MappedFile> WriteAndOpen(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  auto file = std::make_shared<symbols::MappedFile>();
  file->path = path;
  auto source = symbols::OpenSource(UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC)));
  if (source.ok()) {
    file->opened = true;
    if (auto elf = symbols::ElfFile::Parse(*std::move(source)); elf.ok()) file->elf = *std::move(elf);
  }
  if (file->elf) {
    file->build_id = file->elf->build_id();
  } else {
    file->problem = "not an ELF file";
  }
  return file;
}

inline unwind_file_key Key(uint64_t number) {
  unwind_file_key key{};
  key.inode = 100 + number;
  key.size = 1;
  return key;
}

// The programs' memory and the look-up as bpf/abi/unwind.h describes it, each step checked.
class Memory : public TableMemory {
 public:
  struct Less {
    bool operator()(const unwind_file_key& a, const unwind_file_key& b) const { return std::memcmp(&a, &b, sizeof(a)) < 0; }
  };

  Result<std::span<std::byte>> AddChunk(uint32_t chunk) override {
    if (chunks.size() >= max_chunks) return Error{ErrorCode::kExhausted, "the test gives no more chunks"};
    auto [it, added] = chunks.try_emplace(chunk, UNWIND_CHUNK_BYTES);
    if (!added || chunk >= UNWIND_MAX_CHUNKS) ++wrong;
    most_chunks = std::max(most_chunks, chunks.size());
    return std::span<std::byte>(it->second);
  }
  void RemoveChunk(uint32_t chunk) override {
    if (chunks.erase(chunk) != 1) ++wrong;
    for (const auto& [key, file] : files) {
      if (file.table != 0 && UNWIND_REF_CHUNK(file.table) == chunk) ++wrong;
    }
  }
  Status PutFile(const unwind_file_key& key, unwind_ref table) override {
    if (files.size() >= UNWIND_MAX_FILES && !files.contains(key)) return Error{ErrorCode::kExhausted, "full"};
    files[key] = {table, 0, 0};
    return OkStatus();
  }
  void RemoveFile(const unwind_file_key& key) override { files.erase(key); }
  uint64_t UsedNs(const unwind_file_key& key) const override {
    auto it = files.find(key);
    return it == files.end() ? 0 : it->second.used_ns;
  }

  const std::byte* At(unwind_ref ref, uint64_t bytes) const {
    auto it = chunks.find(UNWIND_REF_CHUNK(ref));
    if (ref == 0 || it == chunks.end() || UNWIND_REF_OFFSET(ref) + bytes > UNWIND_CHUNK_BYTES) return nullptr;
    return it->second.data() + UNWIND_REF_OFFSET(ref);
  }
  // The rule at a file offset; nullptr: something is out of place. `none` where nothing is known.
  const unwind_rule* Rule(unwind_ref ref, uint64_t offset) const {
    static const unwind_rule none{};
    auto* table = reinterpret_cast<const unwind_table*>(At(ref, sizeof(unwind_table)));
    if (!table || !At(ref, sizeof(unwind_table) + table->page_count * sizeof(unwind_page))) return nullptr;
    const uint64_t index = (offset >> UNWIND_PAGE_BITS) - table->first_page;
    if (offset >> UNWIND_PAGE_BITS < table->first_page || index >= table->page_count) return &none;
    const unwind_page& page = reinterpret_cast<const unwind_page*>(table + 1)[index];
    if (page.count == 0) return &none;
    auto* rows = reinterpret_cast<const uint32_t*>(At(page.rows, page.count * sizeof(uint32_t)));
    auto* rules = reinterpret_cast<const unwind_rule*>(At(table->rules, table->rule_count * sizeof(unwind_rule)));
    if (!rows || !rules || UNWIND_ROW_OFFSET(rows[0]) != 0) return nullptr;
    const uint32_t* row = std::upper_bound(rows, rows + page.count, offset & 0xffff, [](uint64_t low, uint32_t r) { return low < UNWIND_ROW_OFFSET(r); }) - 1;
    return UNWIND_ROW_RULE(*row) < table->rule_count ? &rules[UNWIND_ROW_RULE(*row)] : nullptr;
  }
  // A program looks a rule up of this file: nullptr when it is missed.
  const unwind_rule* Use(const unwind_file_key& key, uint64_t offset) {
    auto it = files.find(key);
    if (it == files.end() || it->second.table == 0) return nullptr;
    it->second.used_ns = static_cast<uint64_t>(NowNs(CLOCK_MONOTONIC));
    return Rule(it->second.table, offset);
  }

  std::map<uint32_t, std::vector<std::byte>> chunks;
  std::map<unwind_file_key, unwind_file, Less> files;
  size_t max_chunks = UNWIND_MAX_CHUNKS, most_chunks = 0;
  int wrong = 0;  // calls that make no sense
};

// How many of a table's rows are not found in the programs' memory as they should be: at their first and last offset.
inline int Differences(const Memory& memory, unwind_ref ref, const CompiledTable& table) {
  int differences = 0;
  for (size_t page = 0; page + 1 < table.page_rows.size(); ++page) {
    const uint64_t base = (table.first_page + page) << UNWIND_PAGE_BITS;
    const uint32_t begin = table.page_rows[page], end = table.page_rows[page + 1];
    if (begin == end) {
      const unwind_rule* rule = memory.Rule(ref, base + 77);
      differences += !rule || rule->kind != UNWIND_RULE_NONE;
    }
    for (uint32_t i = begin; i < end; i += 1 + (end - begin) / 64) {
      const uint64_t first = base + UNWIND_ROW_OFFSET(table.rows[i]);
      const uint64_t last = i + 1 < end ? base + UNWIND_ROW_OFFSET(table.rows[i + 1]) - 1 : base + 65535;
      for (uint64_t offset : {first, last}) {
        const unwind_rule* rule = memory.Rule(ref, offset);
        differences += !rule || std::memcmp(rule, &table.rules[UNWIND_ROW_RULE(table.rows[i])], sizeof(*rule)) != 0;
      }
    }
  }
  return differences;
}

}  // namespace borescope::unwind
