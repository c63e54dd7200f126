// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/codec/push.h"
#include "common/profile/profile.h"
#include "store/db/sqlite.h"

namespace borescope::store {

using codec::Labels;

// What makes a series: its labels (sorted by name, each once, __name__ among them) and its kinds of values.
struct SeriesKey {
  Labels labels;
  std::vector<profile::ValueType> sample_types;
  profile::ValueType period_type;
};

struct Window {
  SeriesKey series;
  std::string id;  // a window with an ID that is stored already is left out; empty: always stored
  int64_t start_ns = 0, end_ns = 0;
  std::string pprof;  // plain, as EncodePprof writes it
};

struct Series {
  int64_t id = 0;
  SeriesKey key;
};

struct Usage {
  int64_t windows = 0, series = 0, bytes = 0;  // bytes: of the database's pages in use
  std::optional<int64_t> oldest_ns, newest_ns;  // starts of windows
};

struct SessionKey {
  std::string_view namespace_name, name, uid;
};

// SQLite in WAL mode under one directory: one writer, many readers. Thread-safe.
class Database {
 public:
  static Result<std::unique_ptr<Database>> Open(const std::string& directory);

  // All of them or, on an error, none. When it returns they survive kill -9 and a power cut.
  // The number that was new; the others are stored already.
  Result<int64_t> Insert(std::span<const Window> windows);

  // Those with a window that overlaps [from_ns, until_ns).
  Result<std::vector<Series>> ListSeries(int64_t from_ns = INT64_MIN, int64_t until_ns = INT64_MAX);
  // Calls f with the pprof of each window of the series that overlaps [from_ns, until_ns), oldest first, until f fails.
  Status ForEachWindow(int64_t series_id, int64_t from_ns, int64_t until_ns, const std::function<Status(std::string_view pprof)>& f);
  // Starts of the first and the last window of a series.
  Result<std::pair<int64_t, int64_t>> SeriesRange(int64_t series_id);

  struct Evicted {
    int64_t by_age = 0, by_bytes = 0;  // windows
  };
  // Deletes what began before `before_ns`, then the oldest windows until at most max_bytes are in use; gives the space back.
  Result<Evicted> Evict(int64_t before_ns, int64_t max_bytes);
  Result<Usage> GetUsage();

  Status PutSession(const SessionKey& key, std::string_view json, int64_t now_ns);
  Result<std::optional<std::string>> GetSession(const SessionKey& key);

 private:
  class Reader;
  explicit Database(std::string path) : path_(std::move(path)) {}
  Status Prepare();
  Result<bool> InsertOne(const Window& window, std::string_view compressed);
  Result<int64_t> SeriesId(const SeriesKey& key);
  Result<Connection> TakeReader();

  const std::string path_;
  std::mutex write_mutex_;
  Connection writer_;
  std::mutex readers_mutex_;
  std::vector<Connection> readers_;  // idle ones
};

// The part of a database that a caller may see: all that reads for a caller goes through one of these. Cheap to copy.
class View {
 public:
  // scope: "*" is everything, "" nothing, else the namespace whose series (label `namespace`) and session records are seen.
  View(Database* database, std::string scope) : database_(database), scope_(std::move(scope)) {}

  Result<std::vector<Series>> ListSeries(int64_t from_ns = INT64_MIN, int64_t until_ns = INT64_MAX) const;
  // Of a series that ListSeries gave.
  Status ForEachWindow(const Series& series, int64_t from_ns, int64_t until_ns, const std::function<Status(std::string_view pprof)>& f) const;
  Result<std::pair<int64_t, int64_t>> SeriesRange(const Series& series) const;
  // kDenied: of another namespace, whether it exists or not.
  Result<std::optional<std::string>> GetSession(const SessionKey& key) const;

  // The one namespace, or nothing when everything is seen.
  std::optional<std::string_view> ns() const;

 private:
  bool Sees(const Series& series) const;

  Database* database_;
  std::string scope_;
};

// What a caller whose token is of namespace `own` is told who asks for another.
Error OtherNamespace(std::string_view own, std::string_view asked);

}  // namespace borescope::store
