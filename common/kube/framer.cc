// SPDX-License-Identifier: Apache-2.0
#include "common/kube/framer.h"

namespace borescope::kube {

Status WatchFramer::Feed(std::string_view bytes, const std::function<bool(std::string_view object)>& on_object) {
  size_t begin = 0;  // of the current object's part in `bytes`
  for (size_t i = 0; i < bytes.size(); ++i) {
    char c = bytes[i];
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
    } else if (depth_ == 0) {
      if (c == ' ' || c == '\n' || c == '\r' || c == '\t') continue;
      if (c != '{') return Error{ErrorCode::kInvalid, "the watch stream holds something that is no JSON object"};
      begin = i;
      depth_ = 1;
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if ((c == '}' || c == ']') && --depth_ == 0) {
      std::string_view piece = bytes.substr(begin, i + 1 - begin);
      if (partial_.size() + piece.size() > max_) return TooLarge();
      bool more;
      if (partial_.empty()) {
        more = on_object(piece);
      } else {
        partial_ += piece;
        more = on_object(partial_);
        partial_ = {};  // its memory too: one large object must not be paid for ever after
      }
      if (!more) return OkStatus();
    }
  }
  if (depth_ > 0) {
    std::string_view piece = bytes.substr(begin);
    if (partial_.size() + piece.size() > max_) return TooLarge();
    partial_ += piece;
  }
  return OkStatus();
}

Error WatchFramer::TooLarge() const {
  return {ErrorCode::kExhausted, "an object of the watch stream is larger than " + std::to_string(max_) + " bytes"};
}

}  // namespace borescope::kube
