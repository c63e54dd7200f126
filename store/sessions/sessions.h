// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/base/clock.h"
#include "common/http/message.h"
#include "store/db/database.h"

namespace borescope::store {

// The record of a finished session, a JSON object of at most 256 KiB, which outlives the object in the API server.
class SessionRecords {
 public:
  static constexpr std::string_view kPrefix = "/api/v1/sessions/";
  static constexpr size_t kMaxBytes = 256 << 10;

  SessionRecords(Database* database, const Clock* clock) : database_(database), clock_(clock) {}
  // PUT and GET /api/v1/sessions/{namespace}/{name}/{uid}; a PUT replaces, a GET sees what the request's scope shows.
  http::Response Put(const http::Request& request);
  http::Response Get(const http::Request& request);

 private:
  Database* database_;
  const Clock* clock_;
};

}  // namespace borescope::store
