// SPDX-License-Identifier: Apache-2.0
#include "sampler/naming/names_child.h"

#include <malloc.h>

#include <algorithm>
#include <list>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "common/base/fd.h"
#include "sampler/confined/child.h"
#include "sampler/naming/namer.h"
#include "sampler/naming/wire.h"
#include "sampler/symbols/byte_source.h"

namespace borescope::naming {
namespace {

constexpr size_t kMaxKept = 16;                   // files that stay open
constexpr size_t kMaxKeptBytes = 96 << 20;        // what they may hold when another one is opened
constexpr size_t kFlushBytes = 8 << 10;           // names are sent when there are so many
constexpr uint64_t kDescriptors = 1024;           // of kMaxKept files, their debug files, and split debug information

class Server {
 public:
  explicit Server(int socket) : socket_(socket) {}

  // False: the other side is gone.
  bool Serve() {
    NameRequest request;
    std::vector<UniqueFd> files;
    if (confined::ReceiveMessage(socket_, &request, sizeof(request), &files, 1) != static_cast<ptrdiff_t>(sizeof(request))) return false;
    if (request.kind != NameRequest::kName || request.count > NameRequest::kMaxAddresses || files.size() != 1) return false;
    number_ = request.number;
    NameReply reply;
    try {
      reply = Name(request, std::move(files[0]));
    } catch (const std::bad_alloc&) {
      kept_.clear();
      ::malloc_trim(0);
      reply = Problem(Outcome::kLarge, "it needs more memory than there is for it (" + std::to_string(kChildMemoryBytes >> 20) + " MiB)");
    }
    return !gone_ && Send(std::move(reply));
  }

 private:
  struct Kept {
    uint64_t file;
    std::unique_ptr<Namer> namer;
  };

  NameReply Problem(Outcome outcome, std::string text) {
    NameReply reply;
    reply.kind = NameReply::kError;
    reply.outcome = outcome;
    reply.problem = std::move(text);
    return reply;
  }

  bool Send(NameReply reply) {
    reply.number = number_;
    const std::string bytes = Encode(reply);
    if (!confined::SendMessage(socket_, bytes.data(), bytes.size())) gone_ = true;
    return !gone_;
  }

  std::unique_ptr<symbols::ByteSource> Want(const Wanted& wanted) {
    NameReply reply;
    reply.kind = NameReply::kWant;
    reply.wanted = wanted;
    NameRequest answer;
    std::vector<UniqueFd> files;
    if (gone_ || !Send(std::move(reply)) ||
        confined::ReceiveMessage(socket_, &answer, sizeof(answer), &files, 1) != static_cast<ptrdiff_t>(sizeof(answer)) ||
        answer.kind != NameRequest::kFile || answer.number != number_) {
      gone_ = true;
      return nullptr;
    }
    return files.empty() ? nullptr : symbols::OpenSource(std::move(files[0]), answer.bytes);
  }

  NameReply Name(const NameRequest& request, UniqueFd file) {
    auto it = kept_.begin();
    while (it != kept_.end() && it->file != request.file) ++it;
    if (it != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, it);
    } else {
      MakeRoom();
      auto namer = Namer::Open(symbols::OpenSource(std::move(file), request.bytes), [this](const Wanted& wanted) { return Want(wanted); });
      if (!namer.ok()) return Problem(Outcome::kUnreadable, namer.error().message);
      kept_.push_front({request.file, *std::move(namer)});
    }
    Namer& namer = *kept_.front().namer;
    NameReply names;
    names.kind = NameReply::kNames;
    size_t bytes = 0;
    for (size_t i = 0; i < request.count && !gone_; ++i) {
      names.names.push_back(namer.Find(request.addresses[i], request.lines != 0));
      bytes += EncodedBytes(names.names.back());
      if (bytes < kFlushBytes && i + 1 < request.count) continue;
      Send(names);
      names.names.clear();
      bytes = 0;
    }
    NameReply done;
    done.kind = NameReply::kDone;
    done.has_debug = namer.has_debug();
    done.problem = namer.problem();
    return done;
  }

  void MakeRoom() {
    size_t bytes = 0;
    for (const Kept& kept : kept_) bytes += kept.namer->memory_bytes();
    bool dropped = false;
    while (!kept_.empty() && (kept_.size() >= kMaxKept || bytes > kMaxKeptBytes)) {
      bytes -= std::min(bytes, kept_.back().namer->memory_bytes());
      kept_.pop_back();
      dropped = true;
    }
    if (dropped) ::malloc_trim(0);
  }

  const int socket_;
  uint64_t number_ = 0;
  bool gone_ = false;
  std::list<Kept> kept_;  // most recently used first
};

}  // namespace

int RunNames(int socket) {
  confined::ConfineLimits limits;
  limits.memory_bytes = kChildMemoryBytes;
  limits.answer_bytes = 0;  // it writes no files
  limits.descriptors = kDescriptors;
  if (!confined::Begin(socket, "borescope-names", limits)) return 1;
  Server server(socket);
  while (server.Serve()) {
  }
  return 0;
}

}  // namespace borescope::naming
