// SPDX-License-Identifier: Apache-2.0
#include "sampler/stacks/spaces.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "sampler/symbols/proc_maps.h"

namespace borescope::stacks {
namespace {

constexpr size_t kMaxFiles = 4096;
constexpr size_t kMaxMapsText = 32 << 20;

std::string_view BaseName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// The kernel tells either the inode or the build id of a mapped file.
bool IsAnonymous(const engine::Mmap& m) { return (m.inode == 0 && m.build_id.empty()) || m.path == "//anon"; }

// A runtime that a file gives away by its name.
symbols::Language RuntimeOf(std::string_view path, bool executable) {
  std::string_view name = BaseName(path);
  if (name.starts_with("libpython")) return symbols::Language::kPython;
  if (name == "libjvm.so") return symbols::Language::kJava;
  if (name.starts_with("libnode.so")) return symbols::Language::kNodejs;
  if (!executable) return symbols::Language::kUnknown;
  if (name == "node" || name == "nodejs") return symbols::Language::kNodejs;
  if (name.starts_with("python") || name.starts_with("pypy")) return symbols::Language::kPython;
  return symbols::Language::kUnknown;
}

}  // namespace

const std::shared_ptr<const Mapping>* Space::Find(uint64_t address) const {
  auto it = mappings.upper_bound(address);
  if (it == mappings.begin()) return nullptr;
  --it;
  return address < it->second->end ? &it->second : nullptr;
}

Spaces::Spaces(std::string proc_root, std::function<void(const Process&, const Mapping&)> on_file)
    : proc_root_(std::move(proc_root)), on_file_(std::move(on_file)), files_(proc_root_, kMaxFiles) {}

Process* Spaces::Add(pid_t tgid, uint64_t slot, uint64_t cgroup_id, std::string_view comm) {
  if (processes_.size() >= kMaxProcesses && !processes_.contains(tgid)) {
    ++untracked_;
    return nullptr;
  }
  Process& process = processes_[tgid];
  process.tgid = tgid;
  process.slot = slot;
  process.cgroup_id = cgroup_id;
  process.space = std::make_shared<Space>();
  process.space->key = next_id_++;
  process.space->pid = tgid;
  process.info = std::make_shared<ProcessInfo>();
  process.info->tgid = tgid;
  process.info->comm = SanitizeName(comm);
  return &process;
}

// The process's space, its own from now on.
Space& Spaces::Own(Process& process) {
  if (process.space.use_count() > 1) {
    process.space = std::make_shared<Space>(*process.space);
    process.space->key = next_id_++;
    all_mappings_ += process.space->mappings.size();
  }
  return *process.space;
}

void Spaces::Insert(Process& process, Mapping mapping) {
  if (auto* old = process.space->Find(mapping.start)) {
    const Mapping& m = **old;
    bool same_file = m.file == mapping.file || (m.file && mapping.file && m.file->SameFile(*mapping.file));
    if (m.start == mapping.start && m.end == mapping.end && m.offset == mapping.offset && m.path == mapping.path && same_file) return;
  }
  if (process.space->mappings.size() >= kMaxMappings) {
    ++untracked_;
    return;
  }
  if (all_mappings_ >= kMaxAllMappings) {  // count again: spaces went since
    all_mappings_ = 0;
    std::unordered_set<const Space*> seen;
    for (const auto& [tgid, p] : processes_) {
      if (seen.insert(p.space.get()).second) all_mappings_ += p.space->mappings.size();
    }
    if (all_mappings_ >= kMaxAllMappings) {
      ++untracked_;
      return;
    }
  }
  Space& space = Own(process);
  auto& maps = space.mappings;
  auto it = maps.upper_bound(mapping.start);
  if (it != maps.begin() && std::prev(it)->second->end > mapping.start) --it;
  bool replaced = false;
  while (it != maps.end() && it->second->start < mapping.end) {  // what it covers is gone; what stands out on either side stays
    auto old = it->second;
    it = maps.erase(it);
    replaced = true;
    auto piece = [&](uint64_t start, uint64_t end) {
      auto part = std::make_shared<Mapping>(*old);
      part->offset = old->offset + (start - old->start);
      part->start = start;
      part->end = end;
      maps[start] = std::move(part);
    };
    if (old->start < mapping.start) piece(old->start, mapping.start);
    if (old->end > mapping.end) piece(mapping.end, old->end);
  }
  if (replaced || space.gaps) space.key = next_id_++;
  space.gaps = false;
  mapping.id = next_id_++;
  uint64_t start = mapping.start;
  auto added = std::make_shared<const Mapping>(std::move(mapping));
  maps[start] = added;
  ++all_mappings_;

  // The kernel maps the program before its interpreter and before anything that the program maps itself.
  if (!process.info->executable && added->file && added->path.starts_with('/')) SetExecutable(process, added);
  if (auto runtime = RuntimeOf(added->path, false); runtime != symbols::Language::kUnknown) process.info->language = runtime;
}

void Spaces::SetExecutable(Process& process, const std::shared_ptr<const Mapping>& mapping) {
  process.info->executable = mapping;
  auto runtime = RuntimeOf(mapping->path, true);
  if (runtime == symbols::Language::kUnknown && mapping->elf()) runtime = mapping->elf()->language();
  process.info->language = runtime;
}

void Spaces::ReadMaps(Process& process, int64_t now_ns) {
  process.space->maps_ns = now_ns;
  std::string directory = proc_root_ + "/" + std::to_string(process.tgid);
  auto text = ReadFile(directory + "/maps", kMaxMapsText);
  if (!text.ok()) return;  // it has ended: what the events told is what there is
  char link[PATH_MAX];
  ssize_t n = readlink((directory + "/exe").c_str(), link, sizeof(link));
  std::string_view exe(link, n > 0 ? static_cast<size_t>(n) : 0);
  if (exe.ends_with(" (deleted)")) exe.remove_suffix(10);
  std::shared_ptr<const Mapping> executable;
  for (const symbols::MapsLine& line : symbols::ParseMaps(*text, kMaxMappings)) {
    engine::Mmap event;
    event.time_ns = now_ns;
    event.tgid = event.tid = process.tgid;
    event.start = line.start;
    event.length = line.end - line.start;
    event.file_offset = line.offset;
    event.device_major = line.device_major;
    event.device_minor = line.device_minor;
    event.inode = line.inode;
    event.path = line.path;
    OnMmap(event);
    if (line.path == exe && !executable) {
      if (auto* found = process.space->Find(line.start)) executable = *found;
    }
  }
  if (executable && process.info->executable != executable) {
    auto runtime = process.info->language;
    bool by_library = runtime == symbols::Language::kPython || runtime == symbols::Language::kJava || runtime == symbols::Language::kNodejs;
    SetExecutable(process, executable);
    if (by_library) process.info->language = runtime;
  }
}

void Spaces::OnMmap(const engine::Mmap& event) {
  auto it = processes_.find(event.tgid);
  if (it == processes_.end() || event.length == 0 || event.start + event.length < event.start) return;  // nobody's target
  Process& process = it->second;
  Mapping mapping;
  mapping.start = event.start;
  mapping.end = event.start + event.length;
  mapping.offset = event.file_offset;
  mapping.path = event.path.empty() ? "//anon" : SanitizeName(event.path, kMaxPath);  // as the events call what /proc gives no name
  if (event.path == "[vdso]") {
    mapping.offset = 0;
    mapping.file = files_.Vdso();
  } else if (!IsAnonymous(event)) {
    symbols::FileRequest request;
    request.pid = event.tgid;
    request.relatives = [&] { return Relatives(process); };
    request.start = mapping.start;
    request.end = mapping.end;
    request.id = {event.device_major, event.device_minor, event.inode};
    request.path = event.path;
    request.build_id = event.build_id;
    mapping.file = files_.Get(request);
  }
  if (mapping.file && mapping.file->opened && on_file_) on_file_(process, mapping);
  Insert(process, std::move(mapping));
}

std::vector<pid_t> Spaces::Relatives(const Process& process) const {
  constexpr size_t kEnough = 4;
  std::vector<pid_t> pids;
  if (process.cgroup_id == 0) {  // a thread group on this machine: most of them see the files that we see
    pids.push_back(getpid());
    return pids;
  }
  for (const auto& [tgid, other] : processes_) {
    if (other.cgroup_id == process.cgroup_id && tgid != process.tgid) pids.push_back(tgid);
    if (pids.size() == kEnough) break;
  }
  return pids;
}

std::vector<pid_t> Spaces::Roots(const Process& process) const {
  std::vector<pid_t> pids = Relatives(process);
  pids.insert(pids.begin(), process.tgid);
  return pids;
}

void Spaces::OnFork(const engine::Fork& event) {
  Reap(event.time_ns);
  Process* parent = Get(event.parent_tgid, event.space, event.cgroup_id, event.time_ns, "");
  Process* child = Add(event.tgid, event.space, event.cgroup_id, "");
  if (!child || !parent) return;
  child->space = parent->space;
  child->info = std::make_shared<ProcessInfo>(*parent->info);
  child->info->tgid = event.tgid;
}

void Spaces::OnExec(const engine::Exec& event) {
  Reap(event.time_ns);
  Add(event.tgid, event.space, event.cgroup_id, event.comm);  // the engine tells of it before anything is mapped into the new space
}

void Spaces::OnExit(const engine::Exit& event) {
  Reap(event.time_ns);
  auto it = processes_.find(event.tgid);
  if (it != processes_.end() && event.group_dead) ended_.push_back({event.time_ns, event.tgid, it->second.info});
}

void Spaces::Reap(int64_t now_ns) {
  while (!ended_.empty() && ended_.front().time_ns < now_ns - kKeepNs) {
    auto it = processes_.find(ended_.front().tgid);
    if (it != processes_.end() && it->second.info == ended_.front().info) processes_.erase(it);
    ended_.pop_front();
  }
}

void Spaces::OnFound(const engine::Found& event) {
  Reap(event.time_ns);
  Get(event.tgid, event.space, event.cgroup_id, event.time_ns, event.comm);
}

Process* Spaces::Get(pid_t tgid, uint64_t slot, uint64_t cgroup_id, int64_t now_ns, std::string_view comm) {
  auto directory = [&] { return proc_root_ + "/" + std::to_string(tgid); };
  if (auto it = processes_.find(tgid); it != processes_.end()) {
    Process& process = it->second;
    if (process.slot == slot) {
      if (process.info->comm.empty()) process.info->comm = SanitizeName(comm);
      return &process;
    }
    // The pid is another process now, or an exec was not told.
    if (access((directory() + "/maps").c_str(), R_OK) != 0) {
      process.slot = slot;
      return &process;
    }
  }
  std::string name(comm);  // a sample has its thread's name: prefer the process's
  if (auto text = ReadFile(directory() + "/comm", 256); text.ok()) name = Trim(*text);
  Process* process = Add(tgid, slot, cgroup_id, name);
  if (process) ReadMaps(*process, now_ns);
  return process;
}

std::shared_ptr<const Mapping> Spaces::FindMapping(Process& process, uint64_t address, int64_t now_ns) {
  if (auto* found = process.space->Find(address)) return *found;
  if (process.past || (process.space->maps_ns != INT64_MIN && now_ns < process.space->maps_ns + kRereadNs)) {
    process.space->gaps = true;
    return nullptr;
  }
  ReadMaps(process, now_ns);
  if (auto* found = process.space->Find(address)) return *found;
  process.space->gaps = true;
  return nullptr;
}

std::shared_ptr<symbols::MappedFile> Spaces::FindFile(Process& process, uint64_t start, uint64_t end, uint64_t offset,
                                                      const symbols::FileId& id, const symbols::FileVersion& version, int64_t now_ns) {
  auto mapping = FindMapping(process, start, now_ns);
  if (mapping && mapping->file && mapping->start - mapping->offset == start - offset) {
    const symbols::MappedFile& file = *mapping->file;
    if (file.opened && file.version == version && file.Unchanged()) return mapping->file;
  }
  symbols::FileRequest request;
  request.pid = process.tgid;
  request.start = start;
  request.end = end;
  request.id = id;
  request.version = version;
  if (mapping && mapping->start - mapping->offset == start - offset) request.path = mapping->path;
  auto file = files_.Get(request);
  return file->opened && file->version == version ? file : nullptr;
}

std::optional<symbols::PerfMap::Found> Spaces::FindJit(Process& process, uint64_t address, int64_t now_ns) {
  Space& space = *process.space;
  if (!space.jit) space.jit = std::make_shared<Jit>(&jit_bytes_);
  Jit& jit = *space.jit;
  auto found = jit.map.Find(address);
  if (!found && (jit.read_ns == INT64_MIN || now_ns >= jit.read_ns + kRereadNs)) {
    jit.read_ns = now_ns;
    ReadPerfMap(space);
    found = jit.map.Find(address);
  }
  if (space.jit_generation != jit.generation) {
    // Code may have moved: what was known of code without a file is looked up again.
    space.jit_generation = jit.generation;
    space.key = next_id_++;
    for (auto& [start, mapping] : space.mappings) {
      if (mapping->elf()) continue;
      auto fresh = std::make_shared<Mapping>(*mapping);
      fresh->id = next_id_++;
      mapping = std::move(fresh);
    }
  }
  return found;
}

// Takes what was added to the space's perf map since.
void Spaces::ReadPerfMap(Space& space) {
  constexpr size_t kPart = 256 << 10;
  constexpr size_t kPartGrowth = 3 << 20;  // of the lists by one part of shortest lines, beyond their doubling
  Jit& jit = *space.jit;
  auto status = ReadFile(proc_root_ + "/" + std::to_string(space.pid) + "/status", 1 << 16);
  if (!status.ok()) return;
  int inner = symbols::ParseInnermostPid(*status);
  if (inner == 0) inner = space.pid;
  auto fd = symbols::OpenInRoot(proc_root_, space.pid, "tmp/perf-" + std::to_string(inner) + ".map");
  struct stat st;
  if (!fd.ok() || fstat(fd->get(), &st) != 0) return;
  uint64_t size = std::min<uint64_t>(static_cast<uint64_t>(st.st_size), symbols::PerfMap::kMaxBytes);
  uint64_t before = jit.read;
  if (size < jit.read) {  // written anew
    jit.map = {};
    jit.read = 0;
    jit.full = false;
    jit.Count();
  }
  std::string text;
  while (jit.read < size) {
    if (jit_bytes_ + jit.map.memory_bytes() + kPartGrowth > kMaxJitBytes) {
      if (!std::exchange(jit.full, true)) {
        ++untracked_;
        Log(LogLevel::kWarning, "no room for another perf map: code made at run time stays without names",
            {{"pid", static_cast<int64_t>(space.pid)}, {"bytes", static_cast<uint64_t>(jit_bytes_)}});
      }
      break;
    }
    text.resize(std::min<uint64_t>(kPart, size - jit.read));
    ssize_t got = pread(fd->get(), text.data(), text.size(), static_cast<off_t>(jit.read));
    if (got <= 0) break;
    std::string_view part(text.data(), static_cast<size_t>(got));
    size_t taken = jit.map.Add(part);
    if (taken == 0 && part.size() > 2 * symbols::PerfMap::kMaxName) taken = part.size();  // no line is so long
    jit.Count();
    if (taken == 0) break;  // its line is not whole yet
    jit.read += taken;
  }
  if (jit.read != before) ++jit.generation;
}

void Spaces::Clear() {
  processes_.clear();
  ended_.clear();
  all_mappings_ = 0;
  files_ = symbols::FileCache(proc_root_, kMaxFiles);
}

size_t Spaces::memory_bytes() const {
  constexpr size_t kProcess = 512, kMapping = 320;
  return files_.memory_bytes() + processes_.size() * kProcess + all_mappings_ * kMapping + jit_bytes_;
}

}  // namespace borescope::stacks
