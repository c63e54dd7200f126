// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/sample_record.h"

#include <cstdint>
#include <cstring>

namespace borescope::engine {

bool ParseSample(std::string_view record, SampleRecord* out) {
  static_assert(sizeof(borescope_sample) % 8 == 0 && sizeof(borescope_missing_file) % 8 == 0 && sizeof(borescope_raw) % 8 == 0);
  auto take = [&](void* to, size_t size) {
    if (record.size() < size) return false;
    std::memcpy(to, record.data(), size);
    record.remove_prefix(size);
    return true;
  };
  auto words = [&](size_t count, std::span<const uint64_t>* to) {
    if (record.size() / sizeof(uint64_t) < count) return false;
    *to = {reinterpret_cast<const uint64_t*>(record.data()), count};
    record.remove_prefix(count * sizeof(uint64_t));
    return true;
  };
  if (reinterpret_cast<uintptr_t>(record.data()) % alignof(uint64_t) != 0) return false;
  if (!take(&out->head, sizeof(out->head)) || out->head.end_reason >= LOSS_MAX) return false;
  if (!words(out->head.kernel_frames, &out->kernel) || !words(out->head.user_frames, &out->user)) return false;
  out->missing.reset();
  out->raw.reset();
  if (out->head.flags & SAMPLE_MISSING_FILE) {
    borescope_missing_file m;
    if (!take(&m, sizeof(m))) return false;
    out->missing = MissingFile{m.key, m.start, m.end, m.offset};
  }
  if (out->head.flags & SAMPLE_RAW) {
    borescope_raw raw;
    if (!take(&raw, sizeof(raw)) || raw.bytes > record.size()) return false;
    out->raw = RawStack{raw.regs, raw.start, std::as_bytes(std::span(record.data(), raw.bytes))};
  }
  return true;
}

}  // namespace borescope::engine
