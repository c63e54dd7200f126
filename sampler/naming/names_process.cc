// SPDX-License-Identifier: Apache-2.0
#include "sampler/naming/names_process.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/clock.h"
#include "common/base/strings.h"

namespace borescope::naming {
namespace {

uint64_t SizeOf(int fd) {
  struct stat st;
  return ::fstat(fd, &st) == 0 ? static_cast<uint64_t>(st.st_size) : 0;
}

constexpr int64_t kMeasureNs = 200'000'000;

}  // namespace

NamesProcess::NamesProcess(const confined::Program& program, int stop_fd, confined::CpuBudget* budget, int64_t cpu_ns, int64_t wall_ns)
    : process_(program, stop_fd,
               {.title = "the process that names functions", .work = "naming functions of it", .cpu_ns = cpu_ns, .wall_ns = wall_ns, .budget = budget}),
      buffer_(NameReply::kMaxBytes) {}

NamesProcess::Named NamesProcess::Name(const Batch& batch, const std::function<UniqueFd(const Wanted&)>& open) {
  Named named;
  Status asked = Ask(batch, open, &named);
  Measure();
  if (asked.ok()) return named;
  named.problem = asked.error().message;
  named.outcome = Outcome::kCrashed;
  if (asked.error().code == ErrorCode::kExhausted) named.outcome = Outcome::kSlow;
  if (asked.error().code == ErrorCode::kInternal) named.outcome = Outcome::kNoChild;
  named.gave_up = asked.error().code == ErrorCode::kGone;
  return named;
}

Status NamesProcess::Ask(const Batch& batch, const std::function<UniqueFd(const Wanted&)>& open, Named* named) {
  const bool seen = std::find(files_.begin(), files_.end(), batch.file) != files_.end();
  if (!seen && files_.size() >= kMaxFiles) Stop();
  if (pid() == 0) {
    RETURN_IF_ERROR(process_.Start());
    files_.clear();
    measured_ns_ = 0;
  }
  if (std::find(files_.begin(), files_.end(), batch.file) == files_.end()) files_.push_back(batch.file);

  RETURN_IF_ERROR(process_.BeginWork());
  NameRequest request;
  request.number = ++number_;
  request.count = static_cast<uint32_t>(std::min(batch.addresses.size(), NameRequest::kMaxAddresses));
  request.file = batch.file;
  request.bytes = SizeOf(batch.fd);
  request.lines = batch.lines;
  std::copy_n(batch.addresses.begin(), request.count, request.addresses);
  RETURN_IF_ERROR(process_.Send(&request, sizeof(request), std::span(&batch.fd, 1)));
  for (int wanted = 0;;) {
    ASSIGN_OR_RETURN(size_t got, process_.Receive(buffer_.data(), buffer_.size()));
    std::optional<NameReply> reply = Decode({buffer_.data(), got});
    if (!reply) return process_.Useless("gave an answer that is none");
    if (reply->number != request.number) return process_.Useless("answered what it was not asked");
    switch (reply->kind) {
      case NameReply::kNames:
        if (reply->names.size() > request.count - named->names.size()) return process_.Useless("named more than it was asked");
        std::move(reply->names.begin(), reply->names.end(), std::back_inserter(named->names));
        break;
      case NameReply::kWant: {
        if (++wanted > kMaxWanted) return process_.Useless("wants too many files");
        NameRequest answer;
        answer.number = request.number;
        answer.kind = NameRequest::kFile;
        const UniqueFd fd = open(reply->wanted);
        const int number = fd.get();
        if (fd.valid()) answer.bytes = SizeOf(number);
        RETURN_IF_ERROR(process_.Send(&answer, sizeof(answer), fd.valid() ? std::span(&number, 1) : std::span<const int>()));
        break;
      }
      case NameReply::kDone:
        if (named->names.size() != request.count) return process_.Useless("named less than it was asked");
        named->has_debug = reply->has_debug;
        named->problem = std::move(reply->problem);
        return OkStatus();
      case NameReply::kError:
        named->outcome = reply->outcome;
        named->problem = std::move(reply->problem);
        return OkStatus();
    }
  }
}

// What of the process was in memory at most. Read from outside: it may say what it likes.
void NamesProcess::Measure() {
  const int64_t now = NowNs(CLOCK_MONOTONIC);
  if (pid() == 0 || now - measured_ns_ < kMeasureNs) return;
  measured_ns_ = now;
  Result<std::string> status = ReadFile("/proc/" + std::to_string(pid()) + "/status", 64 << 10);
  if (!status.ok()) return;
  for (std::string_view line : Split(*status, '\n')) {
    if (!line.starts_with("VmHWM:")) continue;
    const std::string_view digits = Trim(line.substr(6));
    peak_bytes_ = std::max<size_t>(peak_bytes_, ParseUint(digits.substr(0, digits.find(' '))).value_or(0) << 10);
  }
}

}  // namespace borescope::naming
