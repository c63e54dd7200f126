// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

struct sqlite3;
struct sqlite3_stmt;

namespace borescope::store {

// One connection; for one thread at a time.
class Connection {
 public:
  Connection() = default;
  Connection(Connection&& other) noexcept;
  Connection& operator=(Connection&& other) noexcept;
  ~Connection();
  static Result<Connection> Open(const std::string& path, bool read_only);

  // Statements without parameters and rows, separated by ";".
  Status Execute(const char* sql);
  // The first number of a query's first row.
  Result<int64_t> Number(const char* sql);
  int64_t last_insert_id() const;
  int64_t changes() const;

 private:
  friend class Statement;
  // "database: WHAT: TEXT of the error"; a full disk or a busy file is kUnavailable: the sender shall try again.
  Error LastError(std::string_view what) const;
  sqlite3* db_ = nullptr;
};

// One use of a prepared statement: bind, step to the end, drop.
class Statement {
 public:
  static Result<Statement> Prepare(Connection& connection, const char* sql);
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;
  ~Statement();

  // Parameters count from 1. Texts and blobs must outlive the steps.
  Statement& Bind(int parameter, int64_t value);
  Statement& Bind(int parameter, std::string_view text);
  Statement& BindBlob(int parameter, std::string_view blob);
  // True: a row is there; false: done.
  Result<bool> Step();
  // Steps to the end.
  Status Run();
  // Columns count from 0; views live until the next step.
  int64_t Int(int column) const;
  std::string_view Bytes(int column) const;

 private:
  Statement(Connection* connection, sqlite3_stmt* statement) : connection_(connection), statement_(statement) {}
  Connection* connection_;
  sqlite3_stmt* statement_;
};

}  // namespace borescope::store
