// SPDX-License-Identifier: Apache-2.0
#include "common/codec/wire.h"

namespace borescope::codec {

bool WireReader::TakeVarint(std::string_view* from, uint64_t* value) {
  uint64_t result = 0;
  for (size_t i = 0; i < from->size() && i < 10; ++i) {
    auto byte = static_cast<unsigned char>((*from)[i]);
    result |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if ((byte & 0x80) == 0) {
      from->remove_prefix(i + 1);
      *value = result;
      return true;
    }
  }
  return false;
}

bool WireReader::Next() {
  if (bad_ || rest_.empty()) return false;
  bad_ = true;  // until the field is read whole
  uint64_t tag = 0;
  if (!TakeVarint(&rest_, &tag) || tag >> 3 == 0 || tag > UINT32_MAX) return false;
  field_ = static_cast<uint32_t>(tag >> 3);
  type_ = static_cast<int>(tag & 7);
  uint64_t size = 0;
  switch (type_) {
    case kVarint:
      if (!TakeVarint(&rest_, &value_)) return false;
      bad_ = false;
      return true;
    case kFixed64: size = 8; break;
    case kFixed32: size = 4; break;
    case kBytes:
      if (!TakeVarint(&rest_, &size)) return false;
      break;
    default: return false;  // groups, and numbers that nobody uses
  }
  if (size > rest_.size()) return false;
  bytes_ = rest_.substr(0, size);
  rest_.remove_prefix(size);
  bad_ = false;
  return true;
}

uint64_t WireReader::Varint() {
  if (type_ != kVarint) bad_ = true;
  return bad_ ? 0 : value_;
}

std::string_view WireReader::Bytes() {
  if (type_ != kBytes) bad_ = true;
  return bad_ ? std::string_view() : bytes_;
}

void WireWriter::Packed(uint64_t value) {
  for (; value >= 0x80; value >>= 7) out_->push_back(static_cast<char>(value | 0x80));
  out_->push_back(static_cast<char>(value));
}

void WireWriter::Varint(uint32_t field, uint64_t value) {
  if (value == 0) return;
  Packed(static_cast<uint64_t>(field) << 3);
  Packed(value);
}

void WireWriter::Bytes(uint32_t field, std::string_view bytes) {
  if (!bytes.empty()) Entry(field, bytes);
}

void WireWriter::Entry(uint32_t field, std::string_view bytes) {
  Packed(static_cast<uint64_t>(field) << 3 | 2);
  Packed(bytes.size());
  out_->append(bytes);
}

}  // namespace borescope::codec
