// SPDX-License-Identifier: Apache-2.0
#include "store/db/sqlite.h"

#include <sqlite3.h>

#include <utility>

namespace borescope::store {

Connection::Connection(Connection&& other) noexcept : db_(std::exchange(other.db_, nullptr)) {}

Connection& Connection::operator=(Connection&& other) noexcept {
  std::swap(db_, other.db_);
  return *this;
}

Connection::~Connection() { sqlite3_close_v2(db_); }

Result<Connection> Connection::Open(const std::string& path, bool read_only) {
  Connection connection;
  int flags = (read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE) | SQLITE_OPEN_NOMUTEX;
  if (sqlite3_open_v2(path.c_str(), &connection.db_, flags, nullptr) != SQLITE_OK) return connection.LastError("cannot open " + path);
  sqlite3_busy_timeout(connection.db_, 10'000);
  return connection;
}

Error Connection::LastError(std::string_view what) const {
  Error error{ErrorCode::kInternal, "database: " + std::string(what) + ": " + (db_ != nullptr ? sqlite3_errmsg(db_) : "out of memory")};
  switch (db_ != nullptr ? sqlite3_errcode(db_) & 0xff : SQLITE_NOMEM) {
    case SQLITE_FULL:
      error.message += "; free space under --data, or lower --max-bytes";
      [[fallthrough]];
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_IOERR:
    case SQLITE_NOMEM: error.code = ErrorCode::kUnavailable; break;
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY: error.code = ErrorCode::kDenied; break;
    default: break;
  }
  return error;
}

Status Connection::Execute(const char* sql) {
  if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) return LastError(sql);
  return OkStatus();
}

Result<int64_t> Connection::Number(const char* sql) {
  ASSIGN_OR_RETURN(Statement statement, Statement::Prepare(*this, sql));
  ASSIGN_OR_RETURN(bool row, statement.Step());
  return row ? statement.Int(0) : 0;
}

int64_t Connection::last_insert_id() const { return sqlite3_last_insert_rowid(db_); }
int64_t Connection::changes() const { return sqlite3_changes64(db_); }

Result<Statement> Statement::Prepare(Connection& connection, const char* sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(connection.db_, sql, -1, &statement, nullptr) != SQLITE_OK) return connection.LastError(sql);
  return Statement(&connection, statement);
}

Statement::Statement(Statement&& other) noexcept
    : connection_(other.connection_), statement_(std::exchange(other.statement_, nullptr)) {}

Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::Bind(int parameter, int64_t value) {
  sqlite3_bind_int64(statement_, parameter, value);
  return *this;
}

Statement& Statement::Bind(int parameter, std::string_view text) {
  sqlite3_bind_text64(statement_, parameter, text.data() == nullptr ? "" : text.data(), text.size(), SQLITE_STATIC, SQLITE_UTF8);
  return *this;
}

Statement& Statement::BindBlob(int parameter, std::string_view blob) {
  sqlite3_bind_blob64(statement_, parameter, blob.data() == nullptr ? "" : blob.data(), blob.size(), SQLITE_STATIC);
  return *this;
}

Result<bool> Statement::Step() {
  int rc = sqlite3_step(statement_);
  if (rc == SQLITE_ROW) return true;
  if (rc == SQLITE_DONE) return false;
  return connection_->LastError(sqlite3_sql(statement_));
}

Status Statement::Run() {
  while (true) {
    ASSIGN_OR_RETURN(bool row, Step());
    if (!row) return OkStatus();
  }
}

int64_t Statement::Int(int column) const { return sqlite3_column_int64(statement_, column); }

std::string_view Statement::Bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  return {static_cast<const char*>(data), static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

}  // namespace borescope::store
