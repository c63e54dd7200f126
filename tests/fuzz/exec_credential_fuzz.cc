// SPDX-License-Identifier: Apache-2.0
// What a credential plugin prints: never crashes, and is a credential or a reason that holds nothing of it.
#include <cstdlib>
#include <string>

#include "common/kube/exec_credential.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto credential = borescope::kube::ParseExecCredential({reinterpret_cast<const char*>(data), size}, "client.authentication.k8s.io/v1");
  if (!credential.ok()) {
    if (credential.error().message.empty()) std::abort();
    return 0;
  }
  if (credential->token.empty() && credential->certificate.empty()) std::abort();
  if (credential->certificate.empty() != credential->key.empty()) std::abort();
  return 0;
}
