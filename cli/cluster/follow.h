// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "cli/cluster/access.h"
#include "common/api/types.h"

namespace borescope::cli {

// Set by SIGINT and SIGTERM after CatchInterrupt; the second signal ends the program.
extern std::atomic<bool> g_interrupted;
void CatchInterrupt();

// Lines on a terminal that are drawn over each other. Writes nothing when `stream` is no terminal.
class Progress {
 public:
  explicit Progress(FILE* stream);
  ~Progress() { Clear(); }
  bool on() const { return on_; }
  size_t width() const { return width_; }
  void Draw(const std::vector<std::string>& lines);
  void Clear();

 private:
  FILE* const stream_;
  const bool on_;
  size_t width_ = 80, height_ = 24;
  size_t drawn_ = 0;
};

enum class Ending {
  kFinished,  // it is Finished
  kLate,      // its window is over for longer than FollowOptions::after_end_ns, or it was interrupted: what there is so far
  kEnough,    // FollowOptions::enough
  kDeleted,
};
struct Followed {
  Ending ending = Ending::kFinished;
  api::ProfilingSession session;  // as last seen
  std::string json;               // the same, as the server sent it
};
struct FollowOptions {
  int64_t after_end_ns = 2'700'000'000;    // on top of the window
  int64_t unanswered_ns = 15'000'000'000;  // so long without any status: nobody has taken it up
  bool stop_on_interrupt = true;           // else an interrupt only ends the watching
  FILE* stream = stderr;                   // where `draw` goes, when it is a terminal
  std::function<std::vector<std::string>(const api::ProfilingSession& session, int64_t now_ns, size_t width)> draw;  // null: RenderProgress
  std::function<bool(const api::ProfilingSession& session)> enough;                                                   // null: never
};

// Watches a session to its end and shows how far it is. An interrupt stops the session. Fails when it cannot be read any more, or nobody
// takes it up; then it says whether the session goes on.
Result<Followed> Follow(Cluster& cluster, const std::string& name, const FollowOptions& options);

}  // namespace borescope::cli
