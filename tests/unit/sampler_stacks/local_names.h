// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "sampler/naming/names.h"
#include "sampler/symbols/demangle.h"

namespace borescope::stacks {

// Names from symbol tables, found here and at once, unless the test holds them back.
class LocalNames : public naming::Names {
 public:
  void Ask(const std::shared_ptr<symbols::MappedFile>& file, uint64_t vaddr, const std::function<Origin()>&) override {
    asked.insert({file->path, vaddr});
    Answer answer{file, vaddr, {}, true};
    if (auto symbol = file->elf->FindSymbol(vaddr)) {
      answer.names.outcome = naming::Outcome::kSymbol;
      answer.names.lines = {{symbols::DisplayName(symbol->name), symbol->name, "", 0, 0}};
    }
    answers.push_back(std::move(answer));
  }
  std::vector<Answer> Take() override { return hold ? std::vector<Answer>() : std::exchange(answers, {}); }
  int wake_fd() const override { return -1; }
  void Release() override { answers.clear(); }
  Stats stats() const override { return {}; }
  std::vector<FileInfo> files() const override { return {}; }

  bool hold = false;
  std::vector<Answer> answers;
  std::set<std::pair<std::string, uint64_t>> asked;
};

}  // namespace borescope::stacks
