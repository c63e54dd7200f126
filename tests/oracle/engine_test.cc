// SPDX-License-Identifier: Apache-2.0
// The engine against the kernel: needs root and BPF. Truth is the kernel's own accounting of CPU time, and the children's clocks.
#include "support.h"

namespace borescope::oracle {
namespace {

TEST(EngineTest, SamplesOneProcessAndNothingElse) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  Child spinner(SpinForever), neighbour(SpinForever);
  auto job = e->AddJob(JobFor(199, 2000));
  ASSERT_TRUE(job.ok()) << job.error().ToString();
  auto status = e->AddProcess(*job, spinner.pid());
  ASSERT_TRUE(status.ok()) << status.error().ToString();
  Recorder r;
  DrainFor(*e, r, 2100);
  auto c = e->counters(*job);
  auto total = e->counters();
  std::cerr << "samples " << c.samples << " sampled " << c.sampled_ns << " used " << c.used_ns << " bpf_ns/run " << total.bpf_ns / double(total.runs) << " walks " << total.stack_walks
            << " maps " << total.map_bytes << "\n";
  ASSERT_FALSE(r.samples.empty());
  for (const auto& s : r.samples) {
    EXPECT_EQ(s.tgid, spinner.pid());
    EXPECT_FALSE(s.user.empty());
  }
  ASSERT_EQ(r.found.size(), 1u);
  EXPECT_EQ(r.found[0].tgid, spinner.pid());
  EXPECT_EQ(r.order_errors, 0);
  EXPECT_NEAR(c.sampled_ns / 1e9, c.used_ns / 1e9, 0.3);
}

}  // namespace
}  // namespace borescope::oracle
