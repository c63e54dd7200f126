// SPDX-License-Identifier: Apache-2.0
#include "common/codec/push.h"

#include <gtest/gtest.h>
#include <push/v1/push.pb.h>

namespace borescope::codec {
namespace {

std::vector<PushSeries> Example() {
  return {{{{"__name__", "process_cpu"}, {"service_name", "shop"}, {"empty", ""}},
           {{"pprof bytes", "0192-id"}, {std::string("\x00\xff", 2), ""}}},
          {{{"a", "b"}}, {}}};
}

TEST(PushTest, ProtobufReadsWhatWeWriteAndTheOtherWayRound) {
  std::string bytes = EncodePush(Example());
  push::v1::PushRequest request;
  ASSERT_TRUE(request.ParseFromString(bytes));
  ASSERT_EQ(request.series_size(), 2);
  EXPECT_EQ(request.series(0).labels(1).value(), "shop");
  EXPECT_EQ(request.series(0).samples(0).id(), "0192-id");
  EXPECT_EQ(request.series(0).samples(0).raw_profile(), "pprof bytes");

  auto back = DecodePush(request.SerializeAsString());
  ASSERT_TRUE(back.ok()) << back.error().message;
  ASSERT_EQ(back->size(), 2u);
  EXPECT_EQ((*back)[0].labels, Example()[0].labels);
  EXPECT_EQ((*back)[0].windows[1].pprof, Example()[0].windows[1].pprof);
  EXPECT_EQ((*back)[1].labels, Example()[1].labels);
}

TEST(PushTest, RefusesCutBytesAndTooManyOfEach) {
  std::string bytes = EncodePush({Example()[0]});
  for (size_t cut = 1; cut < bytes.size(); ++cut) EXPECT_FALSE(DecodePush(bytes.substr(0, cut)).ok()) << cut;

  std::vector<PushSeries> labels = Example();
  while (labels[0].labels.size() < 31) labels[0].labels.emplace_back("x" + std::to_string(labels[0].labels.size()), "y");
  auto many_labels = DecodePush(EncodePush(labels));
  ASSERT_FALSE(many_labels.ok());
  EXPECT_EQ(many_labels.error().code, ErrorCode::kExhausted);
  EXPECT_NE(many_labels.error().message.find("30 labels on one series (service_name=\"shop\")"), std::string::npos);

  EXPECT_FALSE(DecodePush(EncodePush(std::vector<PushSeries>(257))).ok());
  std::vector<PushSeries> windows(1);
  windows[0].windows.resize(257);
  EXPECT_FALSE(DecodePush(EncodePush(windows)).ok());
}

}  // namespace
}  // namespace borescope::codec
