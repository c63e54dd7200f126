// SPDX-License-Identifier: Apache-2.0
// The bytes of a watch: cut into objects in one piece and in pieces of the size that the first byte says, which must come out alike;
// each object through a projection, which must agree with a plain parse.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/kube/framer.h"
#include "common/kube/projection.h"

using namespace borescope;
using namespace borescope::kube;

namespace {

constexpr size_t kMaxDepth = 12;

void Check(bool condition) {
  if (!condition) std::abort();
}

struct Fed {
  bool ok = true;
  std::vector<std::string> objects;
};

Fed FeedIn(std::string_view bytes, size_t piece) {
  WatchFramer framer(1024);
  Fed fed;
  for (size_t i = 0; i < bytes.size() && fed.ok; i += piece) {
    fed.ok = framer.Feed(bytes.substr(i, piece), [&](std::string_view o) { return fed.objects.emplace_back(o), true; }).ok();
  }
  return fed;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  Fed whole = FeedIn(bytes, bytes.size()), pieces = FeedIn(bytes, 1 + data[0] % 64);
  Check(whole.ok == pieces.ok);
  Check(whole.objects == pieces.objects);
  static const Projection kAll;
  static const Projection kSome = [] {
    Projection some(std::vector<std::string>{"type", "object.*.a"});
    some.Merge(Projection{"metadata.name", "metadata.labels.*", "spec.containers.name", R"(metadata.annotations.a\.b)"}.Under("object"));
    return some;
  }();
  for (const std::string& text : whole.objects) {
    auto all = kAll.Parse(text, kMaxDepth);
    auto some = kSome.Parse(text, kMaxDepth);
    Check(all.ok() == some.ok());
    nlohmann::json plain = nlohmann::json::parse(text, nullptr, false);
    if (all.ok()) {
      Check(*all == plain);
      Check(some->is_object());
      auto wanted = plain.find("type");
      // A scalar that is wanted is kept as it is; everything kept was there.
      if (wanted != plain.end()) Check(some->contains("type") && (*some)["type"] == *wanted);
      Check(some->size() <= plain.size());
    }
  }
  return 0;
}
