// SPDX-License-Identifier: Apache-2.0
// borescope-names that does what the file says: its last 16 bytes are an order.
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "sampler/confined/child.h"
#include "sampler/naming/names_child.h"
#include "sampler/naming/wire.h"

using namespace borescope;
using namespace borescope::naming;

namespace {

void Send(const NameReply& reply) {
  const std::string bytes = Encode(reply);
  confined::SendMessage(0, bytes.data(), bytes.size());
}

void Obey(const NameRequest& request, const std::string& order) {
  if (order == "crash") *reinterpret_cast<volatile int*>(8) = 1;
  if (order == "exit") _exit(3);
  for (volatile uint64_t i = 0; order == "loop" || (order == "lines loop" && request.lines);) i = i + 1;
  NameReply reply;
  reply.number = request.number;
  if (order == "garbage") {
    confined::SendMessage(0, "garbage", 7);
    return;
  }
  if (order == "forged") ++reply.number;
  if (order == "unreadable") {
    reply.kind = NameReply::kError;
    reply.problem = "no\x1b[31m file";
    return Send(reply);
  }
  if (order == "work") {
    for (volatile uint64_t i = 0; i < 20'000'000;) i = i + 1;
  }
  reply.kind = NameReply::kNames;
  const size_t more = order == "more" ? 1 : 0, less = order == "less" ? 1 : 0;
  for (size_t i = 0; i < request.count + more - less; ++i) {
    AddressNames& names = reply.names.emplace_back();
    names.outcome = request.lines ? Outcome::kLine : Outcome::kSymbol;
    NamedLine line;
    line.function = line.system_name = "f" + std::to_string(request.addresses[i % NameRequest::kMaxAddresses]);
    if (request.lines) line.line = 7;
    names.lines = {line};
  }
  Send(reply);
  reply = {};
  reply.number = request.number;
  reply.kind = NameReply::kDone;
  reply.has_debug = order.starts_with("lines");
  Send(reply);
}

}  // namespace

int main() {
  confined::ConfineLimits limits;
  limits.memory_bytes = kChildMemoryBytes;
  if (!confined::Begin(0, "borescope-test", limits)) return 1;
  while (true) {
    NameRequest request;
    std::vector<UniqueFd> files;
    if (confined::ReceiveMessage(0, &request, sizeof(request), &files, 1) != static_cast<ptrdiff_t>(sizeof(request)) || files.size() != 1) _exit(0);
    char order[17] = {};
    off_t size = 0;
    for (char c; pread(files[0].get(), &c, 1, size) == 1; size += 4096) {
    }
    for (char c; size > 0 && pread(files[0].get(), &c, 1, size - 1) != 1;) --size;
    if (pread(files[0].get(), order, 16, size - 16) != 16) _exit(4);
    Obey(request, order);
  }
}
