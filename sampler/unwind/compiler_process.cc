// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/compiler_process.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/fd.h"
#include "common/base/strings.h"
#include "sampler/confined/child.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace borescope::unwind {

Result<confined::Program> OpenCompiler(std::string path) {
  return confined::OpenProgram(std::move(path), "borescope-unwind-tables", "compiles unwind tables");
}

CompilerProcess::CompilerProcess(const confined::Program& program, int stop_fd, Limits limits)
    : process_(program, stop_fd, {.title = "the compiler of unwind tables", .work = "compiling its unwind table", .cpu_ns = limits.cpu_ns, .wall_ns = limits.wall_ns}) {}

Result<std::string> CompilerProcess::Identify(const File& file, const File& debug, const HashKey& key) {
  identified_ = false;
  if (files_ >= kMaxFiles) Stop();
  if (pid() == 0) {
    RETURN_IF_ERROR(process_.Start());
    files_ = 0;
  }
  ++files_;
  CompilerRequest request;
  request.kind = CompilerRequest::kIdentify;
  request.bytes = file.bytes;
  request.debug_bytes = debug.fd >= 0 ? debug.bytes : 0;
  request.key = key;
  const int fds[] = {file.fd, debug.fd};
  ASSIGN_OR_RETURN(CompilerAnswer answer, Ask(request, std::span(fds).first(request.debug_bytes > 0 ? 2 : 1)));
  if (answer.kind == CompilerAnswer::kError) return Error{ErrorCode::kInvalid, SanitizeName(answer.text, sizeof(answer.text))};
  if (answer.kind != CompilerAnswer::kContent) return process_.Useless("gave an answer that is none");
  identified_ = true;
  return HexEncode(std::string_view(reinterpret_cast<const char*>(answer.content), sizeof(answer.content)));
}

Result<CompilerAnswer> CompilerProcess::Ask(CompilerRequest request, std::span<const int> fds) {
  request.number = ++number_;
  RETURN_IF_ERROR(process_.BeginWork());
  RETURN_IF_ERROR(process_.Send(&request, sizeof(request), fds));
  CompilerAnswer answer;
  ASSIGN_OR_RETURN(size_t got, process_.Receive(&answer, sizeof(answer)));
  if (got != sizeof(answer)) return process_.Useless("gave an answer that is none");
  if (answer.number != request.number) return process_.Useless("answered what it was not asked");
  answer.text[sizeof(answer.text) - 1] = '\0';
  return answer;
}

Result<std::string> CompilerProcess::Compile() {
  if (pid() == 0 || !std::exchange(identified_, false)) return Error{ErrorCode::kUnavailable, "no file was named to the compiler of unwind tables"};
  UniqueFd table(::memfd_create("unwind-table", MFD_CLOEXEC | MFD_NOEXEC_SEAL));
  if (!table.valid() && errno == EINVAL) table.Reset(::memfd_create("unwind-table", MFD_CLOEXEC));  // before 6.3
  if (!table.valid()) return ErrnoError("memfd_create");
  CompilerRequest request;
  request.kind = CompilerRequest::kCompile;
  const int fd = table.get();
  ASSIGN_OR_RETURN(CompilerAnswer answer, Ask(request, std::span(&fd, 1)));
  switch (answer.kind) {
    case CompilerAnswer::kNothing:
      return Error{ErrorCode::kNotFound, SanitizeName(answer.text, sizeof(answer.text))};
    case CompilerAnswer::kError:
      return Error{ErrorCode::kInvalid, SanitizeName(answer.text, sizeof(answer.text))};
    case CompilerAnswer::kChanged:
      return Error{ErrorCode::kUnavailable, SanitizeName(answer.text, sizeof(answer.text))};
    case CompilerAnswer::kTable:
      break;
    default:
      return process_.Useless("gave an answer that is none");
  }
  // Read, not mapped: its writer may still cut it.
  if (answer.bytes > confined::ConfineLimits().answer_bytes) return process_.Useless("speaks of " + std::to_string(answer.bytes) + " bytes");
  std::string bytes(answer.bytes, '\0');
  for (size_t at = 0; at < bytes.size();) {
    ssize_t got = ::pread(table.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return process_.Useless("wrote less than it says");
    at += static_cast<size_t>(got);
  }
  return bytes;
}

}  // namespace borescope::unwind
