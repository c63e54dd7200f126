// SPDX-License-Identifier: Apache-2.0
#include "sampler/publish/sink_client.h"

#include <utility>

#include "common/base/fd.h"
#include "common/base/strings.h"

namespace borescope::publish {

Result<std::string> ReadSinkToken(const Sink& sink) {
  if (sink.token_file.empty()) return std::string();
  ASSIGN_OR_RETURN(std::string token, ReadFile(sink.token_file, 64 << 10));
  return std::string(Trim(token));
}

Result<std::unique_ptr<http::Client>> MakeSinkClient(const Sink& sink, std::chrono::milliseconds connect_timeout) {
  http::ClientOptions client;
  client.base_url = sink.base_url;
  client.user_agent = "borescope-sampler";
  client.connect_timeout = connect_timeout;
  client.max_response_bytes = 1 << 20;
  if (!sink.ca_file.empty()) {
    client.tls = [file = sink.ca_file]() -> Result<http::TlsMaterial> {
      ASSIGN_OR_RETURN(std::string pem, ReadFile(file, 4 << 20));
      return http::TlsMaterial{.ca = std::move(pem), .client_certificate = "", .client_key = ""};
    };
  }
  client.bearer = [sink] { return ReadSinkToken(sink); };
  Result<std::unique_ptr<http::Client>> made = http::Client::Create(std::move(client));
  if (!made.ok()) return made.error().WithContext("sink " + sink.name);
  return made;
}

}  // namespace borescope::publish
