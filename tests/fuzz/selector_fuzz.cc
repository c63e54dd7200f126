// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "store/query/query.h"

// What parses must match or not match without harm; a profile type that parses prints as one that does.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace borescope;
  auto query = store::ParseQuery({reinterpret_cast<const char*>(data), size}, 0, 1);
  if (!query.ok()) return 0;
  const store::Labels labels = {{"__name__", "process_cpu"}, {"pod", "shop-7"}, {"service_name", "shop"}};
  for (const store::Matcher& matcher : query->matchers) {
    matcher.Matches(labels);
    matcher.ToString();
  }
  if (query->type && !store::ProfileType::Parse(query->type->ToString()).ok()) abort();
  return 0;
}
