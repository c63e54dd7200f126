// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/base/result.h"
#include "common/http/canceller.h"
#include "sampler/publish/sinks.h"

namespace borescope::http {
class Client;
}

namespace borescope::publish {

// Shows the stores our token before a window is due: a store asks the API server whose it is and remembers the answer, so that the
// API server may be down later. A token that was renewed is shown too. Sinks without a token, or of another kind (404), are left
// alone. What a store says against us is logged; the pushes say it again. Thread-safe; one thread.
class Introductions {
 public:
  struct Options {
    std::chrono::milliseconds timeout{10'000};
    std::chrono::milliseconds again{2'000};     // after a store that could not say
    std::chrono::milliseconds renewed{30'000};  // how often the files are looked at
  };
  static Result<std::unique_ptr<Introductions>> Create(const std::vector<Sink>& sinks, Options options);
  static Result<std::unique_ptr<Introductions>> Create(const std::vector<Sink>& sinks) { return Create(sinks, Options()); }
  ~Introductions();

  // Soon; does not wait. Names that are not known are left out.
  void Ask(const std::vector<std::string>& sinks);

 private:
  struct Store {
    Sink sink;
    std::unique_ptr<http::Client> client;
    std::string known_as;    // the token that it knows; this and the rest: the thread's alone
    bool foreign = false;    // has no such question
    bool complained = false;
  };
  explicit Introductions(Options options);
  void Run();
  // False: ask again.
  bool Introduce(Store& store);

  const Options options_;
  std::map<std::string, Store> stores_;
  http::Canceller canceller_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> wanted_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace borescope::publish
