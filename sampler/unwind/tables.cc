// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/tables.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "sampler/symbols/elf_file.h"
#include "sampler/unwind/chunk_space.h"
#include "sampler/unwind/compiler_process.h"
#include "sampler/unwind/disk_cache.h"

namespace borescope::unwind {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr size_t kMaxTables = 4 * UNWIND_MAX_FILES;
constexpr const char* kUnknownContent = "file:";  // identity of a file whose content is not known
// A table made for a sample that waits for it must still be there when the sample is looked at again.
constexpr int64_t kKeepNs = kSecond;
// A compiler that can't be started is tried again that much later, and what may not have been the file's fault.
constexpr int64_t kStartAgainNs = 10 * kSecond, kTryAgainNs = 300 * kSecond;
constexpr int kMaxAttempts = 2;  // for a file over which the compiler died
// How much a table is used: 1 for each kHeatStepNs in which it was, less by 1/e each kHeatDecayNs. A steadily used table has about 12.
constexpr int64_t kHeatStepNs = 250'000'000;
constexpr double kHeatDecayNs = 3e9;
constexpr int64_t kPressureNs = 10 * kSecond;  // heat is measured while room was asked for so lately
constexpr double kUsedHeat = 4;                // of what was in use when that begins
// Others make room for a table only when they are clearly used less: those of equal use don't drive out one another.
constexpr double kClearly = 1.25, kClearlyMore = 0.25;
constexpr double kNewHeat = 0.5;               // room of what is idle is enough for a file that no sample has missed yet
constexpr int64_t kIdleCompilerNs = 10 * kSecond;
constexpr int64_t kEndNs = 2 * kSecond;        // the worker has that long to end
constexpr int64_t kLimitedNs = 600 * kSecond;  // an owner is last for so long
constexpr size_t kMaxOwners = 8192;
constexpr size_t kMaxMissingText = 128;

using State = Tables::State;

struct KeyHash {
  size_t operator()(const unwind_file_key& key) const { return XXH3_64bits(&key, sizeof(key)); }
};
struct KeyEqual {
  bool operator()(const unwind_file_key& a, const unwind_file_key& b) const { return std::memcmp(&a, &b, sizeof(a)) == 0; }
};

bool HasBuildId(const UniqueFd& fd, const std::string& build_id) {
  Result<std::unique_ptr<symbols::ByteSource>> source = symbols::OpenSource(UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3)));
  if (!source.ok()) return false;
  Result<std::unique_ptr<symbols::ElfFile>> elf = symbols::ElfFile::Parse(*std::move(source));
  return elf.ok() && (*elf)->build_id() == build_id;
}

// What the worker does for one file.
struct Job {
  std::shared_ptr<symbols::MappedFile> file;  // its descriptor is used, nothing else of it
  UniqueFd copy;                              // instead, of a file that is bytes in memory
  int fd = -1;
  uint64_t bytes = 0;
  std::string content;  // hash, known from an earlier time; empty: to be found out first
  std::string build_id;
  uint64_t owner = 0;
  uint64_t wanted = 1;  // how often it was asked for: the most wanted of an owner is done first
};

struct Done {
  std::string content;  // empty: it could not be found out
  // Another file of this content has, or had, the table.
  bool known = false;
  Result<std::optional<CompiledTable>> table = std::optional<CompiledTable>();  // without value: the file tells nothing
  bool from_disk = false, compiled = false;
};

// One thread and one compiler. Knows files by the numbers that the owner gives them. Its thread holds it: when something that the kernel
// does not let go of keeps it, it is left behind.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  struct Options {
    confined::Program compiler;
    std::string cache_directory, debug_directory;
    CompilerProcess::Limits limits;
  };

  explicit Worker(Options options)
      : options_(std::move(options)), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  Status Start() {
    if (!stop_.valid() || !wake_.valid()) return ErrnoError("eventfd");
    if (!options_.cache_directory.empty()) {
      Result<std::unique_ptr<DiskCache>> cache = DiskCache::Open(options_.cache_directory);
      if (cache.ok()) {
        cache_ = *std::move(cache);
        key_ = cache_->key();
        return OkStatus();
      }
      Log(LogLevel::kWarning, "unwind tables are not kept on disk", {{"why", cache.error().message}});
    }
    if (::getrandom(key_.data(), key_.size(), 0) != static_cast<ssize_t>(key_.size())) return ErrnoError("getrandom");
    return OkStatus();
  }

  // Waits for the thread, but not for ever.
  void End() {
    std::unique_lock lock(mutex_);
    ending_ = true;
    WakeEventFd(stop_.get());
    work_.notify_one();
    if (!ended_.wait_for(lock, std::chrono::nanoseconds(kEndNs), [&] { return !running_; })) {
      Log(LogLevel::kWarning, "the unwind table of a file that can't be read is left behind", {});
    }
  }

  void Add(uint64_t number, Job job) {
    {
      std::lock_guard lock(mutex_);
      jobs_.emplace(number, std::move(job));
      if (!running_) {
        running_ = true;
        std::thread([self = shared_from_this()] { self->Run(); }).detach();
      }
    }
    work_.notify_one();
  }
  void WantMore(uint64_t number) {
    std::lock_guard lock(mutex_);
    if (auto it = jobs_.find(number); it != jobs_.end()) ++it->second.wanted;
  }
  std::vector<std::pair<uint64_t, Done>> Take() {
    uint64_t count;
    [[maybe_unused]] ssize_t got = ::read(wake_.get(), &count, sizeof count);
    std::lock_guard lock(mutex_);
    return std::exchange(done_, {});
  }
  // Whether the owner has a table of this content: no other file of it is compiled.
  void SetKnown(const std::string& content, bool known) {
    std::lock_guard lock(mutex_);
    if (known) known_.insert(content);
    else known_.erase(content);
  }
  // Forgets all; what has begun is kept on disk only, and the compiler ends then.
  void Drop() {
    std::map<uint64_t, Job> dropped;
    std::vector<std::pair<uint64_t, Done>> done;
    {
      std::lock_guard lock(mutex_);
      dropped.swap(jobs_);
      done.swap(done_);
      known_.clear();
      ++generation_;
      idle_at_once_ = true;
    }
    work_.notify_one();
  }
  int wake_fd() const { return wake_.get(); }
  int64_t compile_cpu_ns() const { return cpu_ns_; }
  uint64_t damaged() const { return damaged_; }

 private:
  // Whose files are wanted.
  struct Owner {
    uint64_t turn = 0;         // when it had its last
    int64_t limited_ns = 0;    // when a file of it ran into a limit
  };

  void Run() {
    ::pthread_setname_np(::pthread_self(), "unwind-tables");
    CompilerProcess compiler(options_.compiler, stop_.get(), options_.limits);
    std::unique_lock lock(mutex_);
    while (!ending_) {
      if (jobs_.empty()) {
        if (compiler.pid() == 0) {
          work_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
        } else if (!work_.wait_for(lock, std::chrono::nanoseconds(idle_at_once_ ? 0 : kIdleCompilerNs),
                                   [&] { return ending_ || idle_at_once_ || !jobs_.empty(); }) ||
                   (idle_at_once_ && jobs_.empty())) {
          compiler.Stop();
        }
        idle_at_once_ = false;
        continue;
      }
      auto next = Next();
      const uint64_t number = next->first, generation = generation_;
      Job job = std::move(next->second);
      jobs_.erase(next);
      lock.unlock();
      Done done = Make(job, compiler);
      const bool limited = !done.table.ok() && done.table.error().code == ErrorCode::kExhausted;
      const uint64_t owner = job.owner;
      job = Job();
      cpu_ns_ = compiler.cpu_ns();
      lock.lock();
      if (limited) owners_[owner].limited_ns = NowNs(CLOCK_MONOTONIC);
      if (generation != generation_) continue;
      if (!done.content.empty()) known_.insert(done.content);
      done_.emplace_back(number, std::move(done));
      WakeEventFd(wake_.get());
    }
    lock.unlock();
    compiler.Stop();
    lock.lock();
    running_ = false;
    ended_.notify_all();
  }

  // Owners take turns; one of whom a file ran into a limit is behind all others.
  std::map<uint64_t, Job>::iterator Next() {
    const int64_t now = NowNs(CLOCK_MONOTONIC);
    if (owners_.size() > kMaxOwners) {
      std::erase_if(owners_, [&](const auto& owner) { return now - owner.second.limited_ns > kLimitedNs || owner.second.limited_ns == 0; });
      if (owners_.size() > kMaxOwners) owners_.clear();
    }
    struct Place {
      bool limited;
      uint64_t turn;
      uint64_t wanted;  // the more the earlier
      bool operator<(const Place& other) const { return std::tie(limited, turn, other.wanted) < std::tie(other.limited, other.turn, wanted); }
    };
    auto best = jobs_.begin();
    std::optional<Place> best_place;
    for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
      const auto owner = owners_.find(it->second.owner);
      Place place{false, 0, it->second.wanted};
      if (owner != owners_.end()) {
        place.limited = owner->second.limited_ns != 0 && now - owner->second.limited_ns < kLimitedNs;
        place.turn = owner->second.turn;
      }
      if (!best_place || place < *best_place) {
        best = it;
        best_place = place;
      }
    }
    owners_[best->second.owner].turn = ++turn_;
    return best;
  }

  // By build id, for the owner of this machine has put it there; names that a file gives lead nowhere.
  UniqueFd OpenDebugFile(const Job& job, CompilerProcess::File* debug) {
    if (job.build_id.size() < 2 || options_.debug_directory.empty()) return {};
    const std::string id = HexEncode(job.build_id);
    Result<UniqueFd> fd = symbols::OpenBeneath(options_.debug_directory, ".build-id/" + id.substr(0, 2) + "/" + id.substr(2) + ".debug");
    struct stat st;
    if (!fd.ok() || !HasBuildId(*fd, job.build_id) || ::fstat(fd->get(), &st) != 0) return {};
    *debug = {fd->get(), static_cast<uint64_t>(st.st_size)};
    return *std::move(fd);
  }

  Done Make(const Job& job, CompilerProcess& compiler) {
    Done done;
    done.content = job.content;
    if (!job.content.empty() && LoadKept(&done)) return done;
    CompilerProcess::File debug;
    const UniqueFd debug_fd = OpenDebugFile(job, &debug);
    Result<std::string> bytes = Error{};
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
      Result<std::string> content = compiler.Identify({job.fd, job.bytes}, debug, key_);
      if (!content.ok()) {
        bytes = content.error();
      } else {
        if (!job.content.empty() && *content != job.content) {
          done.table = Error{ErrorCode::kGone, "it has changed since it was first seen"};
          return done;
        }
        if (*content != done.content) {
          done.content = *content;
          if (IsKnown(done.content)) {
            done.known = true;
            return done;
          }
          if (LoadKept(&done)) return done;
        }
        bytes = compiler.Compile();
      }
      if (bytes.ok() || bytes.error().code != ErrorCode::kUnavailable) break;
    }
    done.compiled = true;
    if (!bytes.ok() && bytes.error().code != ErrorCode::kNotFound) {
      done.table = bytes.error();
      // Not because of the content, perhaps: others of the same have another chance.
      const bool lasts = bytes.error().code == ErrorCode::kInvalid || bytes.error().code == ErrorCode::kExhausted;
      if (!lasts) done.content.clear();
      else if (cache_ && !done.content.empty()) Kept(cache_->StoreProblem(Name(done.content), bytes.error().message));
      return done;
    }
    if (bytes.ok()) {
      Result<CompiledTable> table = Parse(*bytes);
      if (!table.ok()) {
        done.table = table.error().WithContext("the compiler of unwind tables gave a table that is none");
        return done;
      }
      done.table = std::optional<CompiledTable>(*std::move(table));
    }
    if (cache_) Kept(cache_->Store(Name(done.content), bytes.ok() ? std::string_view(*bytes) : std::string_view()));
    return done;
  }

  std::string Name(const std::string& content) const { return options_.compiler.version + "-" + content; }

  bool IsKnown(const std::string& content) {
    std::lock_guard lock(mutex_);
    return known_.contains(content);
  }

  // True: the disk had it.
  bool LoadKept(Done* done) {
    if (!cache_) return false;
    Result<DiskCache::Kept> kept = cache_->Load(Name(done->content));
    if (kept.ok()) {
      if (kept->problem.empty()) done->table = std::move(kept->table);
      else done->table = Error{ErrorCode::kInvalid, kept->problem};
      done->from_disk = true;
      return true;
    }
    if (kept.error().code == ErrorCode::kInvalid) {
      ++damaged_;
      Log(LogLevel::kWarning, "a file of the unwind table cache is damaged", {{"why", kept.error().message}});
    }
    return false;
  }

  void Kept(const Status& stored) {
    if (stored.ok() || std::exchange(store_failed_, true)) return;
    Log(LogLevel::kWarning, "an unwind table can't be kept on disk", {{"why", stored.error().message}});
  }

  const Options options_;
  HashKey key_{};
  UniqueFd stop_, wake_;
  std::unique_ptr<DiskCache> cache_;
  bool store_failed_ = false;
  std::atomic<int64_t> cpu_ns_{0};
  std::atomic<uint64_t> damaged_{0};

  std::mutex mutex_;
  std::condition_variable work_, ended_;
  std::map<uint64_t, Job> jobs_;
  std::unordered_map<uint64_t, Owner> owners_;
  std::unordered_set<std::string> known_;
  std::vector<std::pair<uint64_t, Done>> done_;
  uint64_t turn_ = 0, generation_ = 0;
  bool ending_ = false, idle_at_once_ = false, running_ = false;
};

class TablesImpl final : public Tables {
 public:
  TablesImpl(Options options, Worker::Options worker)
      : options_(std::move(options)), worker_(std::make_shared<Worker>(std::move(worker))), space_(options_.memory, options_.memory ? options_.budget_bytes : 0) {}
  ~TablesImpl() override {
    Release();
    worker_->End();
  }
  Status Start() { return worker_->Start(); }

  State Want(const unwind_file_key& key, const std::shared_ptr<symbols::MappedFile>& file, uint64_t owner) override;
  std::shared_ptr<const CompiledTable> Get(const std::shared_ptr<symbols::MappedFile>& file, State* state) override;
  size_t Poll() override;
  int wake_fd() const override { return worker_->wake_fd(); }
  void Release() override;
  Stats stats() const override;
  std::vector<FileInfo> files() const override;

 private:
  // Of one content, whatever names, inodes and keys it has.
  struct Table {
    uint64_t number = 0;
    std::string identity;
    FileInfo info;
    uint64_t owner = 0;     // who wanted it last
    bool working = false;   // the worker has it
    int64_t again_ns = 0;   // a failure: then it is tried again; 0: never
    bool no_compiler = false;  // a failure: of the compiler, not of the file
    std::unordered_set<unwind_file_key, KeyHash, KeyEqual> keys;
    std::shared_ptr<const CompiledTable> compiled;  // null: not kept in our memory just now
    size_t compiled_bytes = 0;
    int64_t got_ns = 0;     // when it was last needed here
    std::optional<ChunkSpace::Placement> placement;
    bool waiting = false;   // for its turn to be placed
    bool too_large = false;
    int64_t refused_ns = 0;  // when others were used more
    double heat = kNewHeat;
    int64_t heat_ns = 0, wanted_ns = 0;
    uint64_t used_ns = 0;   // as the programs wrote it last
    int tries = 0;          // to be placed
  };
  struct Freed {
    int64_t at_ns;
    ChunkSpace::Placement placement;
  };
  struct Known {
    std::weak_ptr<symbols::MappedFile> file;
    Table* table;
  };

  Table& Find(const std::shared_ptr<symbols::MappedFile>& file, uint64_t owner);
  Table& Add(std::string identity, const std::shared_ptr<symbols::MappedFile>& file, uint64_t owner);
  void Ask(Table& table, const std::shared_ptr<symbols::MappedFile>& file);
  void AskAgain(Table& table, const std::shared_ptr<symbols::MappedFile>& file, int64_t now);
  void Settle(Table& table, Done done, int64_t now);
  Table& Identify(Table& table, const std::string& content);
  void Keep(Table& table, CompiledTable compiled, int64_t now);
  void Drop(Table& table);
  void AddKey(Table& table, const unwind_file_key& key);
  void PutKey(Table& table, const unwind_file_key& key);
  void RemoveKey(const unwind_file_key& key, int64_t now);
  void Queue(Table& table);
  // Places a table, or makes room for it. False: it need not wait any more. `promised` bytes of the room are for others.
  bool StillWaits(Table& table, uint64_t promised, int64_t now);
  // Whom to evict so that a table finds so much more room; nothing: those are used more.
  std::optional<std::vector<Table*>> Victims(Table& table, uint64_t bytes, int64_t now);
  void Evict(Table& table, int64_t now);
  void FreeDue(int64_t now);
  void Measure(int64_t now);
  void KeepBudget(int64_t now);
  void EraseUnused();
  uint64_t UsedNs(const Table& table) const;
  static void Warm(Table& table, double by, int64_t now);

  const Options options_;
  std::shared_ptr<Worker> worker_;
  ChunkSpace space_;
  uint64_t next_number_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<Table>> tables_;
  std::unordered_map<std::string, Table*> by_identity_;
  std::unordered_map<unwind_file_key, Table*, KeyHash, KeyEqual> keys_;
  std::unordered_map<const symbols::MappedFile*, Known> known_;
  size_t sweep_known_at_ = 1024;
  std::deque<Table*> waiting_;
  std::deque<Freed> freed_;  // not yet out of the programs' sight
  uint64_t freed_bytes_ = 0, user_bytes_ = 0;
  int64_t measured_ns_ = 0, pressure_ns_ = 0;
  uint64_t compiled_ = 0, from_disk_ = 0, evictions_ = 0;
  bool put_failed_ = false;
};

// --- What is asked for ---

State TablesImpl::Want(const unwind_file_key& key, const std::shared_ptr<symbols::MappedFile>& file, uint64_t owner) {
  if (key.inode == 0) {
    Table& table = Find(file, owner);
    AskAgain(table, file, NowNs(CLOCK_MONOTONIC));
    return table.info.state;
  }
  auto it = keys_.find(key);
  Table* table = it == keys_.end() ? nullptr : it->second;
  // What could not be opened for one process may be for another.
  if (!table || (table->info.state == State::kFailed && file->elf && known_.find(file.get()) == known_.end())) {
    table = &Find(file, owner);
    AddKey(*table, key);
  }
  table->owner = owner;
  if (table->placement) return table->info.state;
  const int64_t now = NowNs(CLOCK_MONOTONIC);
  AskAgain(*table, file, now);
  if (!options_.memory || table->too_large) return table->info.state;
  // The programs miss it.
  if (now - table->wanted_ns >= kHeatStepNs) {
    if (table->wanted_ns != 0) Warm(*table, 1, now);
    table->wanted_ns = now;
  }
  if (table->info.state != State::kReady || table->waiting || table->working) return table->info.state;
  pressure_ns_ = now;
  if (now - table->refused_ns < kHeatStepNs) return table->info.state;
  if (table->compiled) {
    Queue(*table);
  } else if (const uint64_t room = space_.room_bytes() + freed_bytes_; table->info.bytes <= room || Victims(*table, table->info.bytes - room, now)) {
    Ask(*table, file);
  } else {
    table->refused_ns = now;
  }
  return table->info.state;
}

std::shared_ptr<const CompiledTable> TablesImpl::Get(const std::shared_ptr<symbols::MappedFile>& file, State* state) {
  Table& table = Find(file, 0);
  const int64_t now = NowNs(CLOCK_MONOTONIC);
  table.got_ns = now;
  AskAgain(table, file, now);
  if (table.info.state == State::kReady && !table.compiled && !table.working) Ask(table, file);
  *state = table.info.state == State::kReady && !table.compiled ? State::kPending : table.info.state;
  return table.compiled;
}

TablesImpl::Table& TablesImpl::Find(const std::shared_ptr<symbols::MappedFile>& file, uint64_t owner) {
  if (auto it = known_.find(file.get()); it != known_.end()) {
    if (it->second.file.lock() == file) return *it->second.table;
    known_.erase(it);
  }
  if (known_.size() >= sweep_known_at_) {
    std::erase_if(known_, [](const auto& entry) { return entry.second.file.expired(); });
    sweep_known_at_ = std::max<size_t>(1024, 2 * known_.size());
  }
  std::string identity = file->elf ? kUnknownContent + std::to_string(next_number_) : "unreadable:" + file->path + ":" + file->problem;
  auto it = by_identity_.find(identity);
  Table& table = it != by_identity_.end() ? *it->second : Add(std::move(identity), file, owner);
  known_[file.get()] = {file, &table};
  return table;
}

TablesImpl::Table& TablesImpl::Add(std::string identity, const std::shared_ptr<symbols::MappedFile>& file, uint64_t owner) {
  if (tables_.size() >= kMaxTables) EraseUnused();
  auto owned = std::make_unique<Table>();
  Table& table = *owned;
  table.number = next_number_++;
  table.identity = identity;
  table.owner = owner;
  table.info.path = file->path;
  table.info.build_id = HexEncode(file->build_id);
  by_identity_[std::move(identity)] = &table;
  tables_[table.number] = std::move(owned);
  if (file->elf) {
    Ask(table, file);
  } else {
    table.info.state = file->opened ? State::kNothing : State::kFailed;
    table.info.problem = file->problem;
  }
  return table;
}

void TablesImpl::AskAgain(Table& table, const std::shared_ptr<symbols::MappedFile>& file, int64_t now) {
  if (table.working) {
    worker_->WantMore(table.number);
  } else if (table.info.state == State::kPending || (table.info.state == State::kFailed && table.again_ns != 0 && now >= table.again_ns)) {
    Ask(table, file);
  }
}

void TablesImpl::Ask(Table& table, const std::shared_ptr<symbols::MappedFile>& file) {
  if (!file->elf) return;
  const symbols::ByteSource& source = file->elf->source();
  Job job;
  job.file = file;
  job.fd = source.fd();
  job.bytes = source.size();
  if (job.fd < 0) {
    auto copy = symbols::CopyToMemoryFile(source);
    if (!copy.ok()) {
      table.info.state = State::kFailed;
      table.info.problem = copy.error().message;
      return;
    }
    job.copy = *std::move(copy);
    job.fd = job.copy.get();
    struct stat st;
    job.bytes = ::fstat(job.fd, &st) == 0 ? static_cast<uint64_t>(st.st_size) : 0;
  }
  job.build_id = file->build_id;
  job.owner = table.owner;
  if (!table.identity.starts_with(kUnknownContent)) job.content = table.identity;
  table.working = true;
  worker_->Add(table.number, std::move(job));
}

// --- What the worker brings ---

size_t TablesImpl::Poll() {
  const int64_t now = NowNs(CLOCK_MONOTONIC);
  size_t ready = 0;
  for (auto& [number, done] : worker_->Take()) {
    auto it = tables_.find(number);
    if (it == tables_.end()) continue;
    Table* table = it->second.get();
    table->working = false;
    if (!done.content.empty() && done.content != table->identity) table = &Identify(*table, done.content);
    if (!done.known) Settle(*table, std::move(done), now);
    if (table->info.state != State::kPending) ++ready;
  }
  FreeDue(now);
  if (now - pressure_ns_ < kPressureNs && now - measured_ns_ >= kHeatStepNs) Measure(now);
  // What was made free for one is not taken by those behind it.
  uint64_t promised = 0;
  std::erase_if(waiting_, [&](Table* table) {
    if (table->keys.empty() || !StillWaits(*table, promised, now)) {
      table->waiting = false;
      return true;
    }
    promised += table->info.bytes;
    return false;
  });
  KeepBudget(now);
  return ready;
}

void TablesImpl::Settle(Table& table, Done done, int64_t now) {
  if (done.compiled) ++compiled_;
  if (done.from_disk) ++from_disk_;
  if (!done.table.ok()) {
    const Error& error = done.table.error();
    const bool lasts = error.code == ErrorCode::kInvalid || error.code == ErrorCode::kExhausted;
    // Asked for again when it is wanted again: by then another file of the same content may do.
    if (error.code == ErrorCode::kGone || (table.info.state == State::kReady && !lasts)) return;
    table.info.state = State::kFailed;
    table.info.problem = error.message;
    table.no_compiler = error.code == ErrorCode::kInternal;
    table.again_ns = lasts ? 0 : now + (table.no_compiler ? kStartAgainNs : kTryAgainNs);
    for (const unwind_file_key& key : table.keys) PutKey(table, key);
    return;
  }
  table.info.problem.clear();
  if (!done.table->has_value()) {
    table.info.state = State::kNothing;
    for (const unwind_file_key& key : table.keys) PutKey(table, key);
    return;
  }
  table.info.state = State::kReady;
  Keep(table, **std::move(done.table), now);
  if (!table.keys.empty()) Queue(table);
}

// Files are one when their content is. Returns whose that is.
TablesImpl::Table& TablesImpl::Identify(Table& table, const std::string& content) {
  by_identity_.erase(table.identity);
  table.identity = content;
  auto [it, is_new] = by_identity_.emplace(content, &table);
  if (is_new) return table;
  Table& other = *it->second;
  for (const unwind_file_key& key : std::exchange(table.keys, {})) AddKey(other, key);
  for (auto& [pointer, known] : known_) {
    if (known.table == &table) known.table = &other;
  }
  tables_.erase(table.number);
  if (other.compiled) Queue(other);
  return other;
}

void TablesImpl::Keep(Table& table, CompiledTable compiled, int64_t now) {
  Drop(table);
  for (MissingRule& rule : compiled.missing) rule.what = SanitizeName(rule.what, kMaxMissingText);
  table.info.rows = compiled.rows.size();
  table.info.unsupported_rows = compiled.unsupported_rows;
  table.info.bytes = ChunkSpace::BytesOf(compiled);
  table.info.missing.clear();
  table.info.sources = compiled.sources;
  table.compiled_bytes = compiled.memory_bytes();
  table.compiled = std::make_shared<const CompiledTable>(std::move(compiled));
  table.got_ns = now;
  user_bytes_ += table.compiled_bytes;
}

void TablesImpl::Drop(Table& table) {
  if (!table.compiled) return;
  // The most frequent comes first.
  if (!table.compiled->missing.empty()) table.info.missing = {table.compiled->missing[0]};
  table.compiled.reset();
  user_bytes_ -= table.compiled_bytes;
}

void TablesImpl::KeepBudget(int64_t now) {
  if (user_bytes_ <= options_.user_budget_bytes) return;
  std::vector<Table*> kept;
  for (const auto& [number, table] : tables_) {
    if (table->compiled && !table->waiting) kept.push_back(table.get());
  }
  std::sort(kept.begin(), kept.end(), [](const Table* a, const Table* b) { return a->got_ns < b->got_ns; });
  for (Table* table : kept) {
    const size_t limit = now - table->got_ns < kKeepNs ? 4 * options_.user_budget_bytes : options_.user_budget_bytes;
    if (user_bytes_ > limit) Drop(*table);
  }
}

// Tables of files that nobody maps any more, as far as is known here.
void TablesImpl::EraseUnused() {
  std::unordered_set<const Table*> unused;
  for (const auto& [number, table] : tables_) {
    if (table->keys.empty() && !table->working) unused.insert(table.get());
  }
  std::erase_if(waiting_, [&](const Table* table) { return unused.contains(table); });
  std::erase_if(known_, [&](const auto& entry) { return unused.contains(entry.second.table); });
  std::erase_if(tables_, [&](const auto& entry) {
    if (!unused.contains(entry.second.get())) return false;
    Drop(*entry.second);
    worker_->SetKnown(entry.second->identity, false);
    by_identity_.erase(entry.second->identity);
    return true;
  });
}

// --- The programs' memory ---

void TablesImpl::AddKey(Table& table, const unwind_file_key& key) {
  const int64_t now = NowNs(CLOCK_MONOTONIC);
  if (keys_.find(key) != keys_.end()) {
    if (keys_[key] == &table) return;
    RemoveKey(key, now);
  }
  if (keys_.size() >= UNWIND_MAX_FILES) {
    std::vector<std::pair<uint64_t, unwind_file_key>> by_use;
    for (const auto& [known, of] : keys_) {
      by_use.emplace_back(std::max(options_.memory ? options_.memory->UsedNs(known) : 0, static_cast<uint64_t>(of->wanted_ns)), known);
    }
    const size_t leave = by_use.size() / 8 + 1;
    std::nth_element(by_use.begin(), by_use.begin() + static_cast<ptrdiff_t>(leave), by_use.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < leave; ++i) RemoveKey(by_use[i].second, now);
  }
  keys_[key] = &table;
  table.keys.insert(key);
  PutKey(table, key);
}

// Says to the programs what is known of a file, if it is known.
void TablesImpl::PutKey(Table& table, const unwind_file_key& key) {
  const bool tells_nothing = table.info.state == State::kNothing || (table.info.state == State::kFailed && !table.no_compiler);
  if (!options_.memory || (!table.placement && !tells_nothing)) return;
  Status put = options_.memory->PutFile(key, table.placement ? table.placement->table : 0);
  if (!put.ok() && !std::exchange(put_failed_, true)) {
    Log(LogLevel::kWarning, "the unwind table of a file can't be told to the programs", {{"path", table.info.path}, {"why", put.error().message}});
  }
}

void TablesImpl::RemoveKey(const unwind_file_key& key, int64_t now) {
  auto it = keys_.find(key);
  if (it == keys_.end()) return;
  Table& table = *it->second;
  keys_.erase(it);
  table.keys.erase(key);
  if (options_.memory) options_.memory->RemoveFile(key);
  if (table.keys.empty() && table.placement) Evict(table, now);
}

void TablesImpl::Queue(Table& table) {
  if (!options_.memory || table.placement || table.waiting || table.too_large) return;
  // One file of many does not take the room of all others.
  if (const uint64_t most = std::max<uint64_t>(options_.budget_bytes / 4, UNWIND_CHUNK_BYTES); table.info.bytes > most) {
    table.too_large = true;
    table.info.problem = "its table of " + std::to_string(table.info.bytes >> 10) + " KiB is larger than a quarter of the budget for unwind tables (" +
                         std::to_string(most >> 10) + " KiB): raise that budget";
    return;
  }
  table.waiting = true;
  table.tries = 0;
  waiting_.push_back(&table);
}

bool TablesImpl::StillWaits(Table& table, uint64_t promised, int64_t now) {
  const uint64_t room = space_.room_bytes();
  if (promised == 0 || room >= promised + table.info.bytes) {
    Result<ChunkSpace::Placement> placed = space_.Place(*table.compiled);
    if (placed.ok()) {
      table.placement = *std::move(placed);
      table.used_ns = 0;
      for (const unwind_file_key& key : table.keys) PutKey(table, key);
      return false;
    }
    if (placed.error().code == ErrorCode::kUnsupported) {
      table.too_large = true;
      table.info.problem = placed.error().message;
      return false;
    }
  }
  pressure_ns_ = now;
  // The rows of a page are not split: room in pieces that are too small does not count.
  constexpr uint64_t kSlack = 64 << 10;
  uint64_t need = promised + table.info.bytes;
  if (freed_.empty() && promised == 0) need = std::max(need, room) + kSlack * static_cast<uint64_t>(++table.tries);
  if (need <= room + freed_bytes_) return true;
  std::optional<std::vector<Table*>> victims = Victims(table, need - room - freed_bytes_, now);
  if (!victims) {
    table.refused_ns = now;
    return false;
  }
  for (Table* victim : *victims) Evict(*victim, now);
  evictions_ += victims->size();
  return true;
}

std::optional<std::vector<TablesImpl::Table*>> TablesImpl::Victims(Table& table, uint64_t bytes, int64_t now) {
  if (now - measured_ns_ >= kHeatStepNs) Measure(now);
  Warm(table, 0, now);
  std::vector<Table*> placed;
  for (const auto& [number, other] : tables_) {
    if (!other->placement) continue;
    Warm(*other, 0, now);
    placed.push_back(other.get());
  }
  // Those whose room is used least.
  std::sort(placed.begin(), placed.end(), [](const Table* a, const Table* b) {
    const double left = a->heat * static_cast<double>(b->placement->bytes), right = b->heat * static_cast<double>(a->placement->bytes);
    return left != right ? left < right : a->used_ns < b->used_ns;
  });
  uint64_t found = 0;
  double heat = 0;
  for (size_t i = 0; i < placed.size(); ++i) {
    found += placed[i]->placement->bytes;
    heat += placed[i]->heat;
    if (heat * kClearly + kClearlyMore > table.heat) break;
    if (found >= bytes) return std::vector<Table*>(placed.begin(), placed.begin() + static_cast<ptrdiff_t>(i) + 1);
  }
  return std::nullopt;
}

void TablesImpl::Evict(Table& table, int64_t now) {
  for (const unwind_file_key& key : table.keys) options_.memory->RemoveFile(key);
  freed_bytes_ += table.placement->bytes;
  freed_.push_back({now + TableMemory::kGraceNs, *std::move(table.placement)});
  table.placement.reset();
}

void TablesImpl::FreeDue(int64_t now) {
  for (; !freed_.empty() && now >= freed_.front().at_ns; freed_.pop_front()) {
    freed_bytes_ -= freed_.front().placement.bytes;
    space_.Free(freed_.front().placement);
  }
}

// Adds to, or takes nothing from, what is left of the heat.
void TablesImpl::Warm(Table& table, double by, int64_t now) {
  table.heat = table.heat * std::exp(-static_cast<double>(now - table.heat_ns) / kHeatDecayNs) + by;
  table.heat_ns = now;
}

void TablesImpl::Measure(int64_t now) {
  const bool begins = now - measured_ns_ >= kPressureNs;
  measured_ns_ = now;
  for (const auto& [number, table] : tables_) {
    if (!table->placement) continue;
    const uint64_t used = UsedNs(*table);
    if (begins && now - static_cast<int64_t>(used) < kSecond) {
      Warm(*table, kUsedHeat, now);
    } else if (used > table->used_ns) {
      Warm(*table, 1, now);
    }
    table->used_ns = used;
  }
}

uint64_t TablesImpl::UsedNs(const Table& table) const {
  uint64_t used = 0;
  for (const unwind_file_key& key : table.keys) used = std::max(used, options_.memory->UsedNs(key));
  return used;
}

void TablesImpl::Release() {
  worker_->Drop();
  for (Table* table : waiting_) table->waiting = false;
  waiting_.clear();
  for (const auto& [key, table] : keys_) {
    if (options_.memory) options_.memory->RemoveFile(key);
    table->keys.clear();
    table->placement.reset();
  }
  keys_.clear();
  freed_.clear();
  freed_bytes_ = 0;
  space_.Clear();
  std::erase_if(known_, [](const auto& entry) { return !entry.second.table->compiled; });
  std::erase_if(by_identity_, [](const auto& entry) { return !entry.second->compiled; });
  std::erase_if(tables_, [](const auto& entry) { return !entry.second->compiled; });
  for (const auto& [number, table] : tables_) {
    table->working = false;
    worker_->SetKnown(table->identity, true);
  }
}

Tables::Stats TablesImpl::stats() const {
  Stats stats;
  stats.files = tables_.size();
  for (const auto& [number, table] : tables_) {
    stats.rows += table->info.rows;
    stats.under_way += table->working || table->waiting;
    stats.failed += table->info.state == State::kFailed;
    if (table->placement) {
      ++stats.placed_files;
      stats.placed_bytes += table->placement->bytes;
    } else if (options_.memory && table->info.state == State::kReady && !table->keys.empty() && !table->waiting) {
      ++stats.not_placed;
    }
  }
  stats.compiled = compiled_;
  stats.from_disk = from_disk_;
  stats.damaged = worker_->damaged();
  stats.evictions = evictions_;
  stats.chunk_bytes = space_.chunk_bytes();
  stats.user_bytes = user_bytes_;
  stats.compile_cpu_ns = worker_->compile_cpu_ns();
  return stats;
}

std::vector<Tables::FileInfo> TablesImpl::files() const {
  std::vector<FileInfo> files;
  for (const auto& [number, table] : tables_) {
    files.push_back(table->info);
    files.back().placed = table->placement.has_value();
    if (table->compiled) files.back().missing = table->compiled->missing;
  }
  return files;
}

}  // namespace

Result<std::unique_ptr<Tables>> Tables::Create(Options options) {
  Worker::Options worker;
  ASSIGN_OR_RETURN(worker.compiler, OpenCompiler(options.compiler));
  worker.cache_directory = options.cache_directory;
  worker.debug_directory = options.debug_directory;
  worker.limits.cpu_ns = options.compile_limit_ns;
  worker.limits.wall_ns = 6 * options.compile_limit_ns;
  auto tables = std::make_unique<TablesImpl>(std::move(options), std::move(worker));
  RETURN_IF_ERROR(tables->Start());
  return std::unique_ptr<Tables>(std::move(tables));
}

}  // namespace borescope::unwind
