// SPDX-License-Identifier: Apache-2.0
#include "sampler/publish/introductions.h"

#include <pthread.h>

#include "common/base/backoff.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/http/client.h"
#include "sampler/publish/sink_client.h"

namespace borescope::publish {
namespace {

constexpr std::string_view kPath = "/borescope/v1/whoami";
constexpr size_t kMaxMessageBytes = 256;

}  // namespace

Result<std::unique_ptr<Introductions>> Introductions::Create(const std::vector<Sink>& sinks, Options options) {
  std::unique_ptr<Introductions> made(new Introductions(options));
  for (const Sink& sink : sinks) {
    if (sink.token_file.empty()) continue;
    Store& store = made->stores_[sink.name];
    store.sink = sink;
    ASSIGN_OR_RETURN(store.client, MakeSinkClient(sink, options.timeout));
  }
  if (!made->stores_.empty()) made->thread_ = std::thread([m = made.get()] { m->Run(); });
  return made;
}

Introductions::Introductions(Options options) : options_(options) {}

Introductions::~Introductions() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  canceller_.Cancel();
  if (thread_.joinable()) thread_.join();
}

void Introductions::Ask(const std::vector<std::string>& sinks) {
  std::lock_guard lock(mutex_);
  for (const std::string& name : sinks) {
    if (stores_.contains(name)) wanted_.insert(name);
  }
  changed_.notify_all();
}

void Introductions::Run() {
  ::pthread_setname_np(::pthread_self(), "introduce");
  std::set<std::string> now;
  Backoff backoff(options_.again, 30 * options_.again);
  std::unique_lock lock(mutex_);
  while (true) {
    // Those that could not say are asked again after a while, or when somebody asks.
    changed_.wait_for(lock, now.empty() ? options_.renewed : backoff.Next(), [&] { return stopping_ || !wanted_.empty(); });
    if (stopping_) return;
    if (now.empty() || !wanted_.empty()) backoff.Reset();
    now.merge(wanted_);
    wanted_.clear();
    lock.unlock();
    for (auto& [name, store] : stores_) {
      if (store.foreign || store.known_as.empty()) continue;
      auto token = ReadSinkToken(store.sink);
      if (token.ok() && *token != store.known_as) now.insert(name);
    }
    std::erase_if(now, [&](const std::string& name) { return Introduce(stores_.at(name)); });
    lock.lock();
  }
}

bool Introductions::Introduce(Store& store) {
  if (store.foreign) return true;
  auto token = ReadSinkToken(store.sink);
  http::Request request;
  request.path = store.sink.path + std::string(kPath);
  if (!store.sink.tenant.empty()) request.headers["X-Scope-OrgID"] = store.sink.tenant;
  Result<http::Response> response = store.client->Send(request, {.timeout = options_.timeout, .canceller = &canceller_});
  if (response.ok() && response->status == 200) {
    store.known_as = token.ok() ? *token : "";
    store.complained = false;
    return true;
  }
  if (response.ok() && (response->status == 404 || response->status == 405)) return store.foreign = true;
  if (!store.complained) {
    std::string message = response.ok() ? "HTTP " + std::to_string(response->status) + ": " + SanitizeName(Trim(response->body), kMaxMessageBytes)
                                        : response.error().message;
    Log(LogLevel::kWarning, "a sink does not know the sampler; profiles for it wait", {{"sink", store.sink.name}, {"error", message}});
    store.complained = true;
  }
  return false;
}

}  // namespace borescope::publish
