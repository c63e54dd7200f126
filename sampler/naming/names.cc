// SPDX-License-Identifier: Apache-2.0
#include "sampler/naming/names.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "sampler/naming/debug_files.h"
#include "sampler/naming/names_process.h"

namespace borescope::naming {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr size_t kMaxWaiting = 1 << 17;    // addresses
constexpr size_t kMaxFiles = 4096;         // beyond it those that nobody has mapped are forgotten
constexpr int kMaxAttempts = 2;            // for a file over which the child died
constexpr int64_t kTryAgainNs = 300 * kSecond, kStartAgainNs = 10 * kSecond;  // a file that failed; a child that can't be started
constexpr int64_t kIdleNs = 10 * kSecond;  // a child that nobody needs ends
constexpr int64_t kEndNs = 2 * kSecond;    // a worker has that long to end
constexpr int64_t kLimitedNs = 600 * kSecond;  // an owner is last for so long
constexpr size_t kMaxOwners = 8192;

// Set before a worker sees it, but for what is said.
struct File {
  uint64_t number = 0;
  std::weak_ptr<symbols::MappedFile> mapped;
  UniqueFd copy;  // of a file that is bytes in memory
  uint64_t owner = 0;
  DebugRoots roots;
  std::string build_id;
  // Owner thread.
  std::array<uint64_t, kOutcomes> addresses{};
  std::string problem;
};

struct Done {
  std::shared_ptr<File> file;
  std::vector<Names::Answer> answers;
  std::string problem;
};

// What was done, from the workers to the owner.
class Finished {
 public:
  void Add(Done done) {
    {
      std::lock_guard lock(mutex_);
      done_.push_back(std::move(done));
    }
    WakeEventFd(wake_.get());
  }
  std::vector<Done> Take() {
    uint64_t count;
    [[maybe_unused]] ssize_t got = ::read(wake_.get(), &count, sizeof count);
    std::lock_guard lock(mutex_);
    return std::exchange(done_, {});
  }
  int wake_fd() const { return wake_.get(); }

 private:
  UniqueFd wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex_;
  std::vector<Done> done_;
};

// One thread and one child. Its thread holds it: when something that the kernel does not let go of keeps it, it is left behind.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  struct Options {
    std::shared_ptr<const confined::Program> program;
    std::shared_ptr<Finished> finished;
    std::shared_ptr<Worker> next;  // finds the lines of what is named here; null: this one does
    int64_t allowance_ns;
    double share;
    int64_t cpu_limit_ns;
  };

  explicit Worker(Options options) : options_(std::move(options)), budget_(options_.allowance_ns, options_.share) {}

  bool valid() const { return stop_.valid(); }

  void Add(const std::shared_ptr<File>& file, const std::shared_ptr<symbols::MappedFile>& mapped, std::vector<uint64_t> addresses) {
    {
      std::lock_guard lock(mutex_);
      Job& job = jobs_[file->number];
      job.file = file;
      job.mapped = mapped;
      job.addresses.insert(job.addresses.end(), addresses.begin(), addresses.end());
      if (!running_) {
        running_ = true;
        std::thread([self = shared_from_this()] { self->Run(); }).detach();
      }
    }
    work_.notify_one();
  }
  // Forgets all; the child ends.
  void Drop() {
    std::map<uint64_t, Job> dropped;
    {
      std::lock_guard lock(mutex_);
      dropped.swap(jobs_);
      failed_.clear();
      ++generation_;
      idle_at_once_ = true;
    }
    work_.notify_one();
  }
  // Waits for the thread, but not for ever.
  void End() {
    std::unique_lock lock(mutex_);
    ending_ = true;
    WakeEventFd(stop_.get());
    work_.notify_one();
    if (!ended_.wait_for(lock, std::chrono::nanoseconds(kEndNs), [&] { return !running_; })) {
      Log(LogLevel::kWarning, "the names of a file that can't be read are left behind", {});
    }
  }
  int64_t cpu_ns() const { return cpu_ns_; }
  uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  struct Job {
    std::shared_ptr<File> file;
    std::shared_ptr<symbols::MappedFile> mapped;  // its descriptor is used, nothing else of it
    std::vector<uint64_t> addresses;
  };
  struct Failed {
    Outcome outcome;
    std::string problem;
    int64_t until_ns;
  };
  struct Owner {
    uint64_t turn = 0;       // when it had its last
    int64_t limited_ns = 0;  // when a file of it ran into a limit
  };

  void Run() {
    ::pthread_setname_np(::pthread_self(), options_.next ? "names" : "names-lines");
    constexpr int64_t kWallPerCpu = 20;  // on a busy machine, under the budget
    NamesProcess process(*options_.program, stop_.get(), &budget_, options_.cpu_limit_ns, kWallPerCpu * options_.cpu_limit_ns);
    std::unique_lock lock(mutex_);
    while (!ending_) {
      if (jobs_.empty()) {
        if (process.pid() == 0) {
          work_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
        } else if (!work_.wait_for(lock, std::chrono::nanoseconds(idle_at_once_ ? 0 : kIdleNs), [&] { return ending_ || idle_at_once_ || !jobs_.empty(); }) ||
                   (idle_at_once_ && jobs_.empty())) {
          process.Stop();
        }
        idle_at_once_ = false;
        continue;
      }
      auto next = Next();
      Job job;
      std::vector<uint64_t>& all = next->second.addresses;
      const size_t count = std::min(all.size(), NameRequest::kMaxAddresses);
      job.file = next->second.file;
      job.mapped = next->second.mapped;
      job.addresses.assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(count));
      all.erase(all.begin(), all.begin() + static_cast<ptrdiff_t>(count));
      if (all.empty()) jobs_.erase(next);
      const uint64_t generation = generation_;
      std::optional<Failed> failed;
      if (auto it = failed_.find(job.file->number); it != failed_.end()) {
        if (NowNs(CLOCK_MONOTONIC) < it->second.until_ns) failed = it->second;
        else failed_.erase(it);
      }
      lock.unlock();
      const bool ok = Name(job, process, &failed);
      cpu_ns_ = process.cpu_ns();
      peak_bytes_ = process.peak_bytes();
      lock.lock();
      if (!ok || generation != generation_) continue;
      if (failed) {
        if (failed->outcome == Outcome::kSlow || failed->outcome == Outcome::kLarge) owners_[job.file->owner].limited_ns = NowNs(CLOCK_MONOTONIC);
        failed_.insert_or_assign(job.file->number, *std::move(failed));
      }
    }
    lock.unlock();
    process.Stop();
    lock.lock();
    running_ = false;
    ended_.notify_all();
  }

  // False: given up. failed: what is known of the file already; and what became known.
  bool Name(const Job& job, NamesProcess& process, std::optional<Failed>* failed) {
    Done done;
    done.file = job.file;
    NamesProcess::Named named;
    if (*failed) {
      named.outcome = (*failed)->outcome;
      named.problem = (*failed)->problem;
    } else {
      NamesProcess::Batch batch;
      batch.file = job.file->number;
      batch.fd = job.file->copy.valid() ? job.file->copy.get() : job.mapped->elf->source().fd();
      batch.lines = !options_.next;
      batch.addresses = job.addresses;
      for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
        named = process.Name(batch, [&](const Wanted& wanted) { return OpenDebugFile(wanted, job.file->roots); });
        if (named.outcome != Outcome::kCrashed || named.gave_up) break;
      }
      if (named.gave_up) return false;
      if (named.outcome != Outcome::kLine) {
        const int64_t pause = named.outcome == Outcome::kNoChild ? kStartAgainNs : kTryAgainNs;
        *failed = Failed{named.outcome, named.problem, NowNs(CLOCK_MONOTONIC) + pause};
      }
    }
    done.problem = named.problem;
    std::vector<uint64_t> more;
    for (size_t i = 0; i < job.addresses.size(); ++i) {
      Names::Answer& answer = done.answers.emplace_back();
      answer.file = job.mapped;
      answer.vaddr = job.addresses[i];
      answer.last = true;
      if (i < named.names.size()) {
        answer.names = std::move(named.names[i]);
        if (options_.next && named.has_debug) {
          answer.last = false;
          more.push_back(answer.vaddr);
        }
      } else {
        answer.names.outcome = named.outcome;
        // Of the lines only; the symbol has been answered.
        if (!options_.next) answer.names.outcome = Outcome::kLinesFailed;
      }
    }
    options_.finished->Add(std::move(done));
    if (!more.empty()) options_.next->Add(job.file, job.mapped, std::move(more));
    return true;
  }

  // Owners take turns; one of whom a file ran into a limit is behind all others.
  std::map<uint64_t, Job>::iterator Next() {
    const int64_t now = NowNs(CLOCK_MONOTONIC);
    if (owners_.size() > kMaxOwners) owners_.clear();
    auto best = jobs_.begin();
    std::optional<std::pair<bool, uint64_t>> best_place;
    for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
      std::pair<bool, uint64_t> place{false, 0};
      if (auto owner = owners_.find(it->second.file->owner); owner != owners_.end()) {
        place = {owner->second.limited_ns != 0 && now - owner->second.limited_ns < kLimitedNs, owner->second.turn};
      }
      if (!best_place || place < *best_place) {
        best = it;
        best_place = place;
      }
    }
    owners_[best->second.file->owner].turn = ++turn_;
    return best;
  }

  const Options options_;
  UniqueFd stop_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  confined::CpuBudget budget_;  // its thread's
  std::atomic<int64_t> cpu_ns_{0};
  std::atomic<uint64_t> peak_bytes_{0};

  std::mutex mutex_;
  std::condition_variable work_, ended_;
  std::map<uint64_t, Job> jobs_;  // by number of the file
  std::unordered_map<uint64_t, Failed> failed_;
  std::unordered_map<uint64_t, Owner> owners_;
  uint64_t turn_ = 0, generation_ = 0;
  bool ending_ = false, idle_at_once_ = false, running_ = false;
};

class NamesImpl final : public Names {
 public:
  NamesImpl(Options options, confined::Program program) : options_(std::move(options)), finished_(std::make_shared<Finished>()) {
    auto shared = std::make_shared<const confined::Program>(std::move(program));
    lines_ = std::make_shared<Worker>(Worker::Options{shared, finished_, nullptr, options_.allowance_ns, options_.lines_share, options_.cpu_limit_ns});
    symbols_ = std::make_shared<Worker>(Worker::Options{shared, finished_, lines_, options_.allowance_ns, options_.symbols_share, options_.cpu_limit_ns});
  }
  ~NamesImpl() override {
    symbols_->Drop();
    lines_->Drop();
    symbols_->End();
    lines_->End();
  }
  Status Start() {
    if (finished_->wake_fd() < 0 || !symbols_->valid() || !lines_->valid()) return ErrnoError("eventfd");
    return OkStatus();
  }

  void Ask(const std::shared_ptr<symbols::MappedFile>& file, uint64_t vaddr, const std::function<Origin()>& origin) override;
  std::vector<Answer> Take() override;
  int wake_fd() const override { return finished_->wake_fd(); }
  void Release() override;
  Stats stats() const override;
  std::vector<FileInfo> files() const override;

 private:
  std::shared_ptr<File> Get(const std::shared_ptr<symbols::MappedFile>& mapped, const std::function<Origin()>& origin);
  void Refuse(const std::shared_ptr<File>& file, const std::shared_ptr<symbols::MappedFile>& mapped, uint64_t vaddr, Outcome outcome);

  const Options options_;
  std::shared_ptr<Finished> finished_;
  std::shared_ptr<Worker> lines_, symbols_;
  std::unordered_map<const symbols::MappedFile*, std::shared_ptr<File>> files_;
  std::vector<Done> refused_;
  std::array<uint64_t, kOutcomes> addresses_{};
  uint64_t next_number_ = 1, waiting_ = 0;
};

std::shared_ptr<File> NamesImpl::Get(const std::shared_ptr<symbols::MappedFile>& mapped, const std::function<Origin()>& origin) {
  auto it = files_.find(mapped.get());
  if (it != files_.end() && it->second->mapped.lock() == mapped) return it->second;
  if (files_.size() >= kMaxFiles) std::erase_if(files_, [](const auto& entry) { return entry.second->mapped.expired(); });
  auto file = std::make_shared<File>();
  file->number = next_number_++;
  file->mapped = mapped;
  Origin from = origin();
  file->owner = from.owner;
  file->roots = {options_.proc_root, std::move(from.pids), options_.debug_directory, mapped->path};
  file->build_id = HexEncode(mapped->build_id);
  if (mapped->elf->source().fd() < 0) {
    auto copy = symbols::CopyToMemoryFile(mapped->elf->source());
    if (copy.ok()) file->copy = *std::move(copy);
    else file->problem = copy.error().message;
  }
  files_[mapped.get()] = file;
  return file;
}

void NamesImpl::Refuse(const std::shared_ptr<File>& file, const std::shared_ptr<symbols::MappedFile>& mapped, uint64_t vaddr, Outcome outcome) {
  Done done;
  done.file = file;
  done.answers.push_back({mapped, vaddr, {outcome, {}}, true});
  done.problem = file->problem;
  refused_.push_back(std::move(done));
  WakeEventFd(finished_->wake_fd());
}

void NamesImpl::Ask(const std::shared_ptr<symbols::MappedFile>& mapped, uint64_t vaddr, const std::function<Origin()>& origin) {
  std::shared_ptr<File> file = Get(mapped, origin);
  ++waiting_;
  if (mapped->elf->source().fd() < 0 && !file->copy.valid()) return Refuse(file, mapped, vaddr, Outcome::kUnreadable);
  if (waiting_ > kMaxWaiting) return Refuse(file, mapped, vaddr, Outcome::kQueueFull);
  symbols_->Add(file, mapped, {vaddr});
}

std::vector<Names::Answer> NamesImpl::Take() {
  std::vector<Done> all = std::exchange(refused_, {});
  for (Done& done : finished_->Take()) all.push_back(std::move(done));
  std::vector<Answer> answers;
  for (Done& done : all) {
    auto it = done.answers.empty() ? files_.end() : files_.find(done.answers[0].file.get());
    if (it == files_.end() || it->second != done.file) continue;  // of before Release
    if (!done.problem.empty()) done.file->problem = std::move(done.problem);
    for (Answer& answer : done.answers) {
      if (answer.last) {
        ++done.file->addresses[static_cast<size_t>(answer.names.outcome)];
        ++addresses_[static_cast<size_t>(answer.names.outcome)];
        waiting_ -= std::min<uint64_t>(waiting_, 1);
      }
      answers.push_back(std::move(answer));
    }
  }
  return answers;
}

void NamesImpl::Release() {
  symbols_->Drop();
  lines_->Drop();
  refused_.clear();
  finished_->Take();
  files_.clear();
  waiting_ = 0;
}

Names::Stats NamesImpl::stats() const {
  Stats stats;
  stats.addresses = addresses_;
  stats.waiting = waiting_;
  stats.cpu_ns = symbols_->cpu_ns() + lines_->cpu_ns();
  stats.peak_bytes = std::max(symbols_->peak_bytes(), lines_->peak_bytes());
  return stats;
}

std::vector<Names::FileInfo> NamesImpl::files() const {
  std::vector<FileInfo> files;
  for (const auto& [mapped, file] : files_) files.push_back({file->roots.path, file->build_id, file->problem, file->addresses});
  return files;
}

}  // namespace

Result<std::unique_ptr<Names>> Names::Create(Options options) {
  ASSIGN_OR_RETURN(confined::Program program, confined::OpenProgram(options.program, "borescope-names", "names functions"));
  auto names = std::make_unique<NamesImpl>(std::move(options), std::move(program));
  RETURN_IF_ERROR(names->Start());
  return std::unique_ptr<Names>(std::move(names));
}

}  // namespace borescope::naming
