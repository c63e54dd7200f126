// SPDX-License-Identifier: Apache-2.0
// borescope-unwind-tables with another compiler: it does what the file says (Order in table_samples.h).
#include <sys/socket.h>

#include <csignal>
#include <cstring>
#include <vector>

#include "sampler/unwind/compiler_child.h"
#include "table_samples.h"

namespace borescope::unwind {
namespace {

Result<CompiledTable> Obey(symbols::ElfFile& elf, symbols::ElfFile* debug) {
  Order order;
  if (!elf.source().ReadValue(elf.source().size() - sizeof(order), &order)) return Error{ErrorCode::kInvalid, "the order can't be read"};
  const std::string what = order.what;
  if (what == "nothing") return Error{ErrorCode::kNotFound, "it tells nothing"};
  if (what == "error") return Error{ErrorCode::kInvalid, "a test\x1b[31m error"};
  if (what == "crash") *reinterpret_cast<volatile int*>(8) = 1;
  if (what == "exit") _exit(3);
  for (volatile uint64_t i = 0; what == "loop";) i = i + 1;
  for (std::vector<std::vector<char>> all; what == "memory";) all.emplace_back().reserve(64 << 20);
  if (what == "forged") {  // an answer before the answer
    CompilerAnswer answer;
    answer.number = order.seed;
    answer.kind = CompilerAnswer::kNothing;
    iovec data{&answer, sizeof(answer)};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    ::sendmsg(0, &message, 0);
  }
  CompiledTable table = TableOf(order);
  if (what == "huge") table.rows.resize(33 << 20);  // more than an answer may have
  if (what == "lie") table.rows.back() |= 0xffff;   // a rule that is not there
  table.sources = debug ? "test+debug" : "test";
  return table;
}

}  // namespace
}  // namespace borescope::unwind

int main() { _exit(borescope::unwind::RunCompiler(0, borescope::unwind::Obey)); }
