// SPDX-License-Identifier: Apache-2.0
#include "common/gzip/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

namespace borescope::gzip {
namespace {
constexpr int kGzipWindow = 15 + 16;
constexpr size_t kRatioFree = 1 << 20;  // small texts may compress as well as they like
}  // namespace

struct GunzipStream::State {
  z_stream z{};
  size_t max_bytes, max_ratio;
  uint64_t in = 0, out = 0;
  bool in_member = false;  // input ended here would be cut off
};

GunzipStream::GunzipStream(size_t max_bytes, size_t max_ratio) : state_(std::make_unique<State>()) {
  state_->max_bytes = max_bytes;
  state_->max_ratio = max_ratio;
  inflateInit2(&state_->z, kGzipWindow);
}

GunzipStream::~GunzipStream() { inflateEnd(&state_->z); }

Status GunzipStream::Append(std::string_view input, std::string* out) {
  State& s = *state_;
  unsigned char buffer[16384];
  while (!input.empty()) {
    size_t piece = std::min<size_t>(input.size(), 1 << 20);
    s.z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));
    s.z.avail_in = static_cast<uInt>(piece);
    s.in_member = true;
    int rc = Z_OK;
    do {
      s.z.next_out = buffer;
      s.z.avail_out = sizeof buffer;
      rc = inflate(&s.z, Z_NO_FLUSH);
      if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR) {
        return Error{ErrorCode::kInvalid, std::string("not a gzip stream: ") + (s.z.msg != nullptr ? s.z.msg : "damaged")};
      }
      size_t produced = sizeof buffer - s.z.avail_out;
      s.out += produced;
      uint64_t consumed = s.in + (piece - s.z.avail_in);
      if (s.out > s.max_bytes) {
        return Error{ErrorCode::kExhausted, "the gzip body inflates to more than " + std::to_string(s.max_bytes) + " bytes"};
      }
      if (s.out > kRatioFree && s.out / std::max<uint64_t>(consumed, 1) > s.max_ratio) {
        return Error{ErrorCode::kExhausted, "the gzip body grows by more than " + std::to_string(s.max_ratio) + " times"};
      }
      out->append(reinterpret_cast<char*>(buffer), produced);
    } while (rc != Z_STREAM_END && (s.z.avail_in > 0 || s.z.avail_out == 0) && rc != Z_BUF_ERROR);
    size_t used = piece - s.z.avail_in;
    s.in += used;
    input.remove_prefix(used);
    if (rc == Z_STREAM_END) {
      s.in_member = false;
      inflateReset2(&s.z, kGzipWindow);
    } else if (used == 0) {
      return Error{ErrorCode::kInvalid, "not a gzip stream: it makes no progress"};
    }
  }
  return OkStatus();
}

Status GunzipStream::Finish() const {
  if (state_->in_member) return Error{ErrorCode::kInvalid, "the gzip body is cut off"};
  return OkStatus();
}

Result<std::string> Gunzip(std::string_view input, size_t max_bytes, size_t max_ratio) {
  if (input.empty()) return Error{ErrorCode::kInvalid, "not a gzip stream: empty"};
  GunzipStream stream(max_bytes, max_ratio);
  std::string out;
  RETURN_IF_ERROR(stream.Append(input, &out));
  RETURN_IF_ERROR(stream.Finish());
  return out;
}

std::string Gzip(std::string_view input, int level) {
  z_stream z{};
  deflateInit2(&z, level, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, input.size()), '\0');
  size_t done = 0;
  int rc;
  do {
    size_t piece = std::min<size_t>(input.size(), 1 << 30);
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));
    z.avail_in = static_cast<uInt>(piece);
    input.remove_prefix(piece);
    do {
      z.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      z.avail_out = static_cast<uInt>(std::min<size_t>(out.size() - done, std::numeric_limits<uInt>::max()));
      size_t room = z.avail_out;
      rc = deflate(&z, input.empty() ? Z_FINISH : Z_NO_FLUSH);
      done += room - z.avail_out;
    } while (z.avail_in > 0 || (input.empty() && rc != Z_STREAM_END));
  } while (!input.empty());
  deflateEnd(&z);
  out.resize(done);
  return out;
}

}  // namespace borescope::gzip
