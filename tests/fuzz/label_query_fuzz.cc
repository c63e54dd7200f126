// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "store/query/label_query.h"

// Every method in every form: the first byte chooses. What parses is within its limits.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace borescope;
  using store::LabelMethod;
  if (size == 0) return 0;
  constexpr LabelMethod kMethods[] = {LabelMethod::kProfileTypes, LabelMethod::kLabelNames, LabelMethod::kLabelValues, LabelMethod::kSeries};
  LabelMethod method = kMethods[data[0] % 4];
  std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  Result<store::LabelQuery> query = Error{};
  if (data[0] / 4 % 3 == 2) {
    http::Request get;
    const char* names[] = {"name", "matchers", "labelNames", "from", "until"};
    for (const char* name : names) {
      size_t end = std::min(body.find('\n'), body.size());
      get.query[name] = body.substr(0, end);
      body.remove_prefix(std::min(end + 1, body.size()));
    }
    query = store::ParseLabelQuery(method, get, 1'790'000'000'000'000'000);
  } else {
    query = store::ParseLabelQuery(method, data[0] / 4 % 3 == 1 ? store::Encoding::kJson : store::Encoding::kProto, body);
  }
  if (!query.ok()) return 0;
  if (query->selectors.size() > 32 || query->label_names.size() > 64) abort();
  if (method == LabelMethod::kLabelValues && query->name.empty()) abort();
  return 0;
}
