// SPDX-License-Identifier: Apache-2.0
#include "store/db/database.h"

#include <sys/stat.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>

#include "common/base/strings.h"

namespace borescope::store {
namespace {

constexpr int64_t kSchemaVersion = 1;
// A stored window was at most this large when it was let in (codec::PprofLimits), and what is written anew is never larger than twice.
constexpr size_t kMaxPprofBytes = 16 << 20;

constexpr const char* kSchema = R"(
  CREATE TABLE series (id INTEGER PRIMARY KEY, labels BLOB NOT NULL, types BLOB NOT NULL, UNIQUE (labels, types));
  CREATE TABLE windows (seq INTEGER PRIMARY KEY, id TEXT UNIQUE, series INTEGER NOT NULL, start_ns INTEGER NOT NULL,
                        end_ns INTEGER NOT NULL, pprof BLOB NOT NULL);
  CREATE INDEX windows_by_series ON windows (series, start_ns, end_ns);
  CREATE INDEX windows_by_start ON windows (start_ns);
  CREATE TABLE sessions (namespace TEXT NOT NULL, name TEXT NOT NULL, uid TEXT NOT NULL, updated_ns INTEGER NOT NULL,
                         json TEXT NOT NULL, PRIMARY KEY (namespace, name, uid));
  PRAGMA user_version = 1;
)";

// Texts that contain no NUL (ingest sees to that), each ended by one.
void AppendText(std::string* out, std::string_view text) {
  out->append(text);
  out->push_back('\0');
}

std::string EncodeLabels(const Labels& labels) {
  std::string out;
  for (const auto& [name, value] : labels) {
    AppendText(&out, name);
    AppendText(&out, value);
  }
  return out;
}

std::string EncodeTypes(const SeriesKey& key) {
  std::string out;
  AppendText(&out, key.period_type.type);
  AppendText(&out, key.period_type.unit);
  for (const profile::ValueType& type : key.sample_types) {
    AppendText(&out, type.type);
    AppendText(&out, type.unit);
  }
  return out;
}

SeriesKey DecodeKey(std::string_view labels, std::string_view types) {
  SeriesKey key;
  std::vector<std::string_view> parts = Split(labels, '\0');
  for (size_t i = 0; i + 1 < parts.size(); i += 2) key.labels.emplace_back(parts[i], parts[i + 1]);
  parts = Split(types, '\0');
  for (size_t i = 0; i + 1 < parts.size(); i += 2) {
    profile::ValueType type{std::string(parts[i]), std::string(parts[i + 1])};
    if (i == 0) {
      key.period_type = std::move(type);
    } else {
      key.sample_types.push_back(std::move(type));
    }
  }
  return key;
}

std::string Compress(std::string_view bytes) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 3));
  return out;
}

Result<std::string> Decompress(std::string_view bytes) {
  unsigned long long size = ZSTD_getFrameContentSize(bytes.data(), bytes.size());
  if (size > kMaxPprofBytes) return Error{ErrorCode::kInternal, "database: a stored profile is damaged: no zstd frame of a sensible size"};
  std::string out(size, '\0');
  size_t got = ZSTD_decompress(out.data(), out.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(got) || got != size) {
    return Error{ErrorCode::kInternal, std::string("database: a stored profile is damaged: ") + ZSTD_getErrorName(got)};
  }
  return out;
}

}  // namespace

// A connection for reading, back in the pool at the end.
class Database::Reader {
 public:
  Reader(Database* database, Connection connection) : database_(database), connection_(std::move(connection)) {}
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() {
    std::lock_guard lock(database_->readers_mutex_);
    database_->readers_.push_back(std::move(connection_));
  }
  Connection& operator*() { return connection_; }

 private:
  Database* database_;
  Connection connection_;
};

Result<std::unique_ptr<Database>> Database::Open(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0750) != 0 && errno != EEXIST) return ErrnoError("--data: cannot make " + directory);
  auto database = std::unique_ptr<Database>(new Database(directory + "/store.db"));
  RETURN_IF_ERROR(database->Prepare());
  return database;
}

Status Database::Prepare() {
  ASSIGN_OR_RETURN(writer_, Connection::Open(path_, /*read_only=*/false));
  ASSIGN_OR_RETURN(int64_t version, writer_.Number("PRAGMA user_version"));
  if (version > kSchemaVersion) {
    return Error{ErrorCode::kUnsupported, "database " + path_ + " has version " + std::to_string(version) + ", this program knows up to " +
                                              std::to_string(kSchemaVersion) + ": start the newer borescope-store, or give another --data"};
  }
  // auto_vacuum must be set before the first table is made. FULL: a commit is on the disk before it returns.
  RETURN_IF_ERROR(writer_.Execute("PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL"));
  if (version == 0) RETURN_IF_ERROR(writer_.Execute((std::string("BEGIN IMMEDIATE;") + kSchema + "COMMIT").c_str()));
  return OkStatus();
}

Result<Connection> Database::TakeReader() {
  {
    std::lock_guard lock(readers_mutex_);
    if (!readers_.empty()) {
      Connection connection = std::move(readers_.back());
      readers_.pop_back();
      return connection;
    }
  }
  return Connection::Open(path_, /*read_only=*/true);
}

Result<int64_t> Database::Insert(std::span<const Window> windows) {
  std::vector<std::string> compressed;  // before the lock: it takes most of the time
  for (const Window& window : windows) compressed.push_back(Compress(window.pprof));

  std::lock_guard lock(write_mutex_);
  RETURN_IF_ERROR(writer_.Execute("BEGIN IMMEDIATE"));
  int64_t stored = 0;
  Status status;
  for (size_t i = 0; i < windows.size() && status.ok(); ++i) {
    Result<bool> fresh = InsertOne(windows[i], compressed[i]);
    status = fresh.status();
    if (status.ok() && *fresh) ++stored;
  }
  if (status.ok()) status = writer_.Execute("COMMIT");
  if (!status.ok()) {
    (void)writer_.Execute("ROLLBACK").ok();  // fails when SQLite has rolled back already
    return status.error();
  }
  return stored;
}

Result<bool> Database::InsertOne(const Window& window, std::string_view compressed) {
  ASSIGN_OR_RETURN(int64_t series, SeriesId(window.series));
  ASSIGN_OR_RETURN(Statement insert,
                   Statement::Prepare(writer_, "INSERT INTO windows (id, series, start_ns, end_ns, pprof) VALUES (?1, ?2, ?3, ?4, ?5) "
                                               "ON CONFLICT (id) DO NOTHING"));
  if (!window.id.empty()) insert.Bind(1, window.id);  // else NULL, which conflicts with nothing
  insert.Bind(2, series).Bind(3, window.start_ns).Bind(4, window.end_ns).BindBlob(5, compressed);
  RETURN_IF_ERROR(insert.Run());
  return writer_.changes() == 1;
}

Result<int64_t> Database::SeriesId(const SeriesKey& key) {
  std::string labels = EncodeLabels(key.labels), types = EncodeTypes(key);
  ASSIGN_OR_RETURN(Statement find, Statement::Prepare(writer_, "SELECT id FROM series WHERE labels = ?1 AND types = ?2"));
  ASSIGN_OR_RETURN(bool found, find.BindBlob(1, labels).BindBlob(2, types).Step());
  if (found) return find.Int(0);
  ASSIGN_OR_RETURN(Statement insert, Statement::Prepare(writer_, "INSERT INTO series (labels, types) VALUES (?1, ?2)"));
  RETURN_IF_ERROR(insert.BindBlob(1, labels).BindBlob(2, types).Run());
  return writer_.last_insert_id();
}

Result<std::vector<Series>> Database::ListSeries(int64_t from_ns, int64_t until_ns) {
  ASSIGN_OR_RETURN(Connection connection, TakeReader());
  Reader reader(this, std::move(connection));
  ASSIGN_OR_RETURN(Statement select,
                   Statement::Prepare(*reader, "SELECT id, labels, types FROM series WHERE EXISTS (SELECT 1 FROM windows WHERE series = "
                                               "series.id AND start_ns < ?2 AND (end_ns > ?1 OR start_ns >= ?1)) ORDER BY id"));
  select.Bind(1, from_ns).Bind(2, until_ns);
  std::vector<Series> all;
  while (true) {
    ASSIGN_OR_RETURN(bool row, select.Step());
    if (!row) return all;
    all.push_back({select.Int(0), DecodeKey(select.Bytes(1), select.Bytes(2))});
  }
}

Status Database::ForEachWindow(int64_t series_id, int64_t from_ns, int64_t until_ns,
                               const std::function<Status(std::string_view pprof)>& f) {
  ASSIGN_OR_RETURN(Connection connection, TakeReader());
  Reader reader(this, std::move(connection));
  // A window without a length counts where it stands.
  ASSIGN_OR_RETURN(Statement select,
                   Statement::Prepare(*reader, "SELECT pprof FROM windows WHERE series = ?1 AND start_ns < ?3 AND "
                                               "(end_ns > ?2 OR start_ns >= ?2) ORDER BY start_ns, seq"));
  select.Bind(1, series_id).Bind(2, from_ns).Bind(3, until_ns);
  while (true) {
    ASSIGN_OR_RETURN(bool row, select.Step());
    if (!row) return OkStatus();
    ASSIGN_OR_RETURN(std::string pprof, Decompress(select.Bytes(0)));
    RETURN_IF_ERROR(f(pprof));
  }
}

Result<std::pair<int64_t, int64_t>> Database::SeriesRange(int64_t series_id) {
  ASSIGN_OR_RETURN(Connection connection, TakeReader());
  Reader reader(this, std::move(connection));
  ASSIGN_OR_RETURN(Statement select, Statement::Prepare(*reader, "SELECT min(start_ns), max(start_ns) FROM windows WHERE series = ?1"));
  ASSIGN_OR_RETURN(bool row, select.Bind(1, series_id).Step());
  return row ? std::pair(select.Int(0), select.Int(1)) : std::pair<int64_t, int64_t>(0, 0);
}

Result<Database::Evicted> Database::Evict(int64_t before_ns, int64_t max_bytes) {
  Evicted evicted;
  // In small steps, so that a push waits for one of them at most.
  constexpr int64_t kStep = 500;
  while (true) {
    std::lock_guard lock(write_mutex_);
    ASSIGN_OR_RETURN(Statement remove, Statement::Prepare(writer_, "DELETE FROM windows WHERE seq IN (SELECT seq FROM windows WHERE "
                                                                   "start_ns < ?1 ORDER BY start_ns LIMIT ?2)"));
    RETURN_IF_ERROR(remove.Bind(1, before_ns).Bind(2, kStep).Run());
    evicted.by_age += writer_.changes();
    if (writer_.changes() < kStep) break;
  }
  // Records of sessions never take more than a tenth: they would push out the profiles else.
  while (true) {
    std::lock_guard lock(write_mutex_);
    ASSIGN_OR_RETURN(int64_t bytes, writer_.Number("SELECT coalesce(sum(length(json)), 0) FROM sessions"));
    if (bytes <= max_bytes / 10) break;
    ASSIGN_OR_RETURN(Statement remove,
                     Statement::Prepare(writer_, "DELETE FROM sessions WHERE rowid IN (SELECT rowid FROM sessions ORDER BY updated_ns LIMIT ?1)"));
    RETURN_IF_ERROR(remove.Bind(1, kStep).Run());
  }
  while (true) {
    std::lock_guard lock(write_mutex_);
    ASSIGN_OR_RETURN(int64_t pages, writer_.Number("PRAGMA page_count"));
    ASSIGN_OR_RETURN(int64_t free, writer_.Number("PRAGMA freelist_count"));
    ASSIGN_OR_RETURN(int64_t page_size, writer_.Number("PRAGMA page_size"));
    int64_t excess = (pages - free) * page_size - max_bytes;
    if (excess <= 0) break;
    // The oldest ones that together are as large as the excess.
    ASSIGN_OR_RETURN(Statement remove,
                     Statement::Prepare(writer_, "DELETE FROM windows WHERE seq IN (SELECT seq FROM (SELECT seq, "
                                                 "sum(bytes) OVER (ORDER BY start_ns, seq) - bytes AS before FROM (SELECT seq, start_ns, "
                                                 "length(pprof) AS bytes FROM windows ORDER BY start_ns, seq LIMIT ?2)) WHERE before < ?1)"));
    RETURN_IF_ERROR(remove.Bind(1, excess).Bind(2, kStep).Run());
    if (writer_.changes() == 0) break;
    evicted.by_bytes += writer_.changes();
  }
  if (evicted.by_age + evicted.by_bytes > 0) {
    std::lock_guard lock(write_mutex_);
    RETURN_IF_ERROR(writer_.Execute("DELETE FROM series WHERE NOT EXISTS (SELECT 1 FROM windows WHERE windows.series = series.id)"));
    RETURN_IF_ERROR(writer_.Execute("PRAGMA incremental_vacuum(4096)"));
  }
  std::lock_guard lock(write_mutex_);
  ASSIGN_OR_RETURN(Statement remove, Statement::Prepare(writer_, "DELETE FROM sessions WHERE updated_ns < ?1"));
  RETURN_IF_ERROR(remove.Bind(1, before_ns).Run());
  return evicted;
}

Result<Usage> Database::GetUsage() {
  ASSIGN_OR_RETURN(Connection connection, TakeReader());
  Reader reader(this, std::move(connection));
  Usage usage;
  ASSIGN_OR_RETURN(int64_t pages, (*reader).Number("PRAGMA page_count"));
  ASSIGN_OR_RETURN(int64_t free, (*reader).Number("PRAGMA freelist_count"));
  ASSIGN_OR_RETURN(int64_t page_size, (*reader).Number("PRAGMA page_size"));
  usage.bytes = (pages - free) * page_size;
  ASSIGN_OR_RETURN(usage.series, (*reader).Number("SELECT count(*) FROM series"));
  ASSIGN_OR_RETURN(usage.windows, (*reader).Number("SELECT count(*) FROM windows"));
  if (usage.windows > 0) {
    ASSIGN_OR_RETURN(usage.oldest_ns, (*reader).Number("SELECT min(start_ns) FROM windows"));
    ASSIGN_OR_RETURN(usage.newest_ns, (*reader).Number("SELECT max(start_ns) FROM windows"));
  }
  return usage;
}

Status Database::PutSession(const SessionKey& key, std::string_view json, int64_t now_ns) {
  std::lock_guard lock(write_mutex_);
  ASSIGN_OR_RETURN(Statement put, Statement::Prepare(writer_, "INSERT INTO sessions (namespace, name, uid, updated_ns, json) VALUES "
                                                              "(?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET updated_ns = ?4, json = ?5"));
  return put.Bind(1, key.namespace_name).Bind(2, key.name).Bind(3, key.uid).Bind(4, now_ns).Bind(5, json).Run();
}

Result<std::optional<std::string>> Database::GetSession(const SessionKey& key) {
  ASSIGN_OR_RETURN(Connection connection, TakeReader());
  Reader reader(this, std::move(connection));
  ASSIGN_OR_RETURN(Statement get,
                   Statement::Prepare(*reader, "SELECT json FROM sessions WHERE namespace = ?1 AND name = ?2 AND uid = ?3"));
  ASSIGN_OR_RETURN(bool row, get.Bind(1, key.namespace_name).Bind(2, key.name).Bind(3, key.uid).Step());
  return row ? std::optional(std::string(get.Bytes(0))) : std::nullopt;
}

Error OtherNamespace(std::string_view own, std::string_view asked) {
  return {ErrorCode::kDenied, "the token is of namespace " + std::string(own) + " and shows nothing of " + SanitizeName(asked, 64) +
                                  ": send one of ServiceAccount borescope-reader there (kubectl create token borescope-reader -n NAMESPACE --audience borescope-store)"};
}

std::optional<std::string_view> View::ns() const { return scope_ == "*" ? std::nullopt : std::optional<std::string_view>(scope_); }

bool View::Sees(const Series& series) const {
  if (scope_ == "*") return true;
  return !scope_.empty() && std::ranges::find(series.key.labels, std::pair<std::string, std::string>("namespace", scope_)) != series.key.labels.end();
}

Result<std::vector<Series>> View::ListSeries(int64_t from_ns, int64_t until_ns) const {
  ASSIGN_OR_RETURN(std::vector<Series> all, database_->ListSeries(from_ns, until_ns));
  std::erase_if(all, [&](const Series& series) { return !Sees(series); });
  return all;
}

Status View::ForEachWindow(const Series& series, int64_t from_ns, int64_t until_ns,
                           const std::function<Status(std::string_view pprof)>& f) const {
  if (!Sees(series)) return Error{ErrorCode::kInternal, "a series out of the view's scope"};
  return database_->ForEachWindow(series.id, from_ns, until_ns, f);
}

Result<std::pair<int64_t, int64_t>> View::SeriesRange(const Series& series) const {
  if (!Sees(series)) return Error{ErrorCode::kInternal, "a series out of the view's scope"};
  return database_->SeriesRange(series.id);
}

Result<std::optional<std::string>> View::GetSession(const SessionKey& key) const {
  if (scope_ != "*" && scope_ != key.namespace_name) return OtherNamespace(scope_, key.namespace_name);
  return database_->GetSession(key);
}

}  // namespace borescope::store
