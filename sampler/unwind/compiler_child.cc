// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/compiler_child.h"

#include <malloc.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "sampler/confined/child.h"
#include "sampler/symbols/elf_file.h"

namespace borescope::unwind {
namespace {

bool Send(int socket, const CompilerAnswer& answer) { return confined::SendMessage(socket, &answer, sizeof(answer)); }

CompilerAnswer Problem(const std::string& text) {
  CompilerAnswer answer;
  answer.kind = CompilerAnswer::kError;
  std::memcpy(answer.text, text.data(), std::min(text.size(), sizeof(answer.text) - 1));
  return answer;
}

// The request's descriptors; false: the other side is gone.
bool Receive(int socket, CompilerRequest* request, std::vector<UniqueFd>* files) {
  constexpr size_t kMaxFiles = 2;
  if (confined::ReceiveMessage(socket, request, sizeof(*request), files, kMaxFiles) != static_cast<ptrdiff_t>(sizeof(*request))) return false;
  return files->size() == (request->kind == CompilerRequest::kIdentify && request->debug_bytes > 0 ? 2 : 1);
}

class Server {
 public:
  explicit Server(const CompileFunction& compile) : compile_(compile) {}

  CompilerAnswer Identify(const CompilerRequest& request, std::vector<UniqueFd>& files) {
    Forget();
    key_ = request.key;
    Result<std::unique_ptr<HashedSource>> file = HashedSource::Open(std::move(files[0]), request.bytes, true, key_, &changed_);
    if (!file.ok()) return Problem(file.error().message);
    std::string digests = (*file)->digest();
    file_ = *std::move(file);
    if (request.debug_bytes > 0) {
      // A debug file of no use is none: the file's own tables are looked at all the same.
      auto debug = HashedSource::Open(std::move(files[1]), request.debug_bytes, false, key_, &changed_);
      if (debug.ok()) {
        debug_ = *std::move(debug);
        digests += debug_->digest();
      }
    }
    CompilerAnswer answer;
    answer.kind = CompilerAnswer::kContent;
    const XXH128_hash_t hash = XXH3_128bits_withSecret(digests.data(), digests.size(), key_.data(), key_.size());
    std::memcpy(answer.content, &hash, sizeof(answer.content));
    return answer;
  }

  CompilerAnswer Compile(const UniqueFd& into) {
    if (!file_) return Problem("no file was named");
    Result<CompiledTable> table = Run();
    if (changed_) {
      CompilerAnswer answer = Problem("it changed while its unwind table was made");
      answer.kind = CompilerAnswer::kChanged;
      return answer;
    }
    CompilerAnswer answer;
    if (!table.ok()) {
      answer = Problem(table.error().message);
      if (table.error().code == ErrorCode::kNotFound) answer.kind = CompilerAnswer::kNothing;
      return answer;
    }
    const std::string bytes = Serialize(*table);
    for (size_t at = 0; at < bytes.size();) {
      ssize_t written = ::pwrite(into.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return Problem("its table of " + std::to_string(bytes.size()) + " bytes is too large");
      at += static_cast<size_t>(written);
    }
    answer.kind = CompilerAnswer::kTable;
    answer.bytes = bytes.size();
    return answer;
  }

  void Forget() {
    file_.reset();
    debug_.reset();
    changed_ = false;
  }

 private:
  Result<CompiledTable> Run() {
    ASSIGN_OR_RETURN(std::unique_ptr<symbols::ElfFile> elf, symbols::ElfFile::Parse(std::move(file_)));
    if (elf->machine() != symbols::kOwnMachine) return Error{ErrorCode::kUnsupported, "it holds code of another machine"};
    std::unique_ptr<symbols::ElfFile> debug;
    if (debug_) {
      auto parsed = symbols::ElfFile::Parse(std::move(debug_));
      if (parsed.ok() && (*parsed)->machine() == elf->machine()) debug = *std::move(parsed);
    }
    return compile_(*elf, debug.get());
  }

  const CompileFunction& compile_;
  HashKey key_{};
  bool changed_ = false;
  std::unique_ptr<HashedSource> file_, debug_;  // identified, not yet compiled
};

}  // namespace

int RunCompiler(int socket, const CompileFunction& compile) {
  const confined::ConfineLimits limits;
  if (!confined::Begin(socket, "borescope-unwind", limits)) return 1;
  Server server(compile);
  while (true) {
    CompilerRequest request;
    std::vector<UniqueFd> files;
    if (!Receive(socket, &request, &files)) return 0;
    CompilerAnswer answer;
    try {
      answer = request.kind == CompilerRequest::kIdentify ? server.Identify(request, files) : server.Compile(files[0]);
    } catch (const std::bad_alloc&) {
      answer = Problem("it needs more memory than its compiler may have (" + std::to_string(limits.memory_bytes >> 20) + " MiB)");
    }
    if (answer.kind != CompilerAnswer::kContent) server.Forget();
    files.clear();
    answer.number = request.number;
    if (!Send(socket, answer)) return 0;
    if (request.kind == CompilerRequest::kCompile) ::malloc_trim(0);
  }
}

}  // namespace borescope::unwind
