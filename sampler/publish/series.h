// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/profile/profile.h"

namespace borescope::publish {

// What the labels of a container's profile are made of; later ones win over earlier ones, design 2.
struct SeriesSource {
  std::map<std::string, std::string> session_labels;  // the session's own
  std::map<std::string, std::string> pod_labels;      // those that the session asked for
  std::map<std::string, std::string> identity;        // service_name, namespace, pod, node, cluster, workload, workload_kind, version
  std::string container;
  std::string language;
  std::string session;  // profiling_session
  std::string profile_name;  // __name__, "process_cpu"
};

// The label set of the series: at most 30 (those of the session go first when there are more), values cut to 2048 bytes of valid
// UTF-8, empty ones left out, keys made [A-Za-z_][A-Za-z0-9_]*.
std::map<std::string, std::string> SeriesLabels(const SeriesSource& source);

// A UUID that is the same for the same window and different for any other: of (job, container, kind, window start, incarnation).
std::string WindowId(std::string_view job_id, std::string_view container_id, std::string_view kind, int64_t start_ns,
                     std::string_view incarnation, int part);

// The profile as it goes out: gzip of pprof, in as many parts as a receiver with Pyroscope's limits needs (16 000 samples, 4 MiB
// before compression). Each further part begins 1 ns later: a receiver may drop equal labels and times.
struct EncodedPart {
  std::string pprof_gzip;
  int64_t time_ns = 0;
  int64_t total = 0;  // of the last value
};
std::vector<EncodedPart> EncodeParts(const profile::Profile& profile);

}  // namespace borescope::publish
