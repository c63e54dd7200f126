// SPDX-License-Identifier: Apache-2.0
#include "sampler/publish/samples_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>

#include "common/base/log.h"

namespace borescope::publish {
namespace {

constexpr size_t kBlock = 256 << 10;

constexpr const char* kLossNames[] = {
#define BORESCOPE_LOSS(enumerator, name, text, kind) name,
    BORESCOPE_LOSS_TABLE(BORESCOPE_LOSS)
#undef BORESCOPE_LOSS
};

}  // namespace

Result<std::unique_ptr<SamplesFile>> SamplesFile::Open(const std::string& path, Mode mode) {
  int how = mode == Mode::kAppend ? O_APPEND : O_TRUNC;
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | how | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoError("--samples " + path);
  return std::unique_ptr<SamplesFile>(new SamplesFile(path, std::move(fd)));
}

SamplesFile::~SamplesFile() { Flush(); }

void SamplesFile::Write(const stacks::NamedSample& sample, std::string_view session) {
  if (!fd_.valid()) return;
  auto out = std::back_inserter(buffer_);
  fmt::format_to(out, R"({{"time_ns":{},"tid":{},"tgid":{},"session":{},"weight_ns":{},"frames":[)", sample.raw->time_ns,
                 sample.raw->tid, sample.raw->tgid, JsonQuote(session), sample.raw->weight_ns);
  bool first = true;
  for (const stacks::NamedFrame& frame : *sample.frames) {
    if (!first) buffer_ += ',';
    first = false;
    buffer_ += JsonQuote(frame.name);
  }
  // Which of them the compiler put into the next one, by index.
  first = true;
  for (size_t i = 0; i < sample.frames->size(); ++i) {
    if (!(*sample.frames)[i].inlined) continue;
    fmt::format_to(out, "{}{}", first ? R"(],"inlined":[)" : ",", i);
    first = false;
  }
  fmt::format_to(out, R"(],"end":"{}"}})"
                      "\n",
                 kLossNames[sample.end_reason < LOSS_MAX ? sample.end_reason : LOSS_NONE]);
  if (buffer_.size() >= kBlock) Flush();
}

void SamplesFile::Flush() {
  std::string_view rest = buffer_;
  while (fd_.valid() && !rest.empty()) {
    ssize_t written = ::write(fd_.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      Log(LogLevel::kError, "the file of --samples can't be written; no more samples go there",
          {{"file", path_}, {"error", ErrnoError("write").message}});
      fd_.Reset();
      break;
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  buffer_.clear();
}

}  // namespace borescope::publish
