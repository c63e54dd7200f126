// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace borescope::symbols {

// Bytes of one record, read in order; once something is missing, ok() is false and everything reads as 0.
class DwarfCursor {
 public:
  DwarfCursor(const uint8_t* data, size_t size, uint64_t vaddr) : begin_(data), at_(data), end_(data + size), vaddr_(vaddr) {}
  bool ok() const { return ok_; }
  bool done() const { return at_ == end_ || !ok_; }
  const uint8_t* at() const { return at_; }
  // Address of the next byte.
  uint64_t vaddr() const { return vaddr_ + static_cast<uint64_t>(at_ - begin_); }
  size_t left() const { return static_cast<size_t>(end_ - at_); }

  template <typename T>
  T Take() {
    T value{};
    if (left() < sizeof(T)) return Fail<T>();
    std::memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  uint64_t Uleb() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint8_t byte = Take<uint8_t>();
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (!(byte & 0x80)) return value;
    }
    return Fail<uint64_t>();
  }
  int64_t Sleb() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint8_t byte = Take<uint8_t>();
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte & 0x80) continue;
      if ((byte & 0x40) && shift + 7 < 64) value |= ~uint64_t{0} << (shift + 7);
      return static_cast<int64_t>(value);
    }
    return Fail<int64_t>();
  }
  // The next n bytes as a cursor of their own.
  DwarfCursor Block(uint64_t n) {
    if (n > left()) {
      ok_ = false;
      return DwarfCursor(at_, 0, 0);
    }
    DwarfCursor block(at_, static_cast<size_t>(n), vaddr());
    at_ += n;
    return block;
  }
  // A pointer in one of the DW_EH_PE encodings, without indirection; data: base of data-relative ones.
  uint64_t Pointer(uint8_t encoding, uint64_t data = 0) {
    uint64_t here = vaddr(), value = 0;
    switch (encoding & 0x0f) {
      case 0x00: case 0x04: case 0x0c: value = Take<uint64_t>(); break;
      case 0x01: value = Uleb(); break;
      case 0x02: value = Take<uint16_t>(); break;
      case 0x03: value = Take<uint32_t>(); break;
      case 0x09: value = static_cast<uint64_t>(Sleb()); break;
      case 0x0a: value = static_cast<uint64_t>(static_cast<int64_t>(Take<int16_t>())); break;
      case 0x0b: value = static_cast<uint64_t>(static_cast<int64_t>(Take<int32_t>())); break;
      default: return Fail<uint64_t>();
    }
    switch (encoding & 0xf0) {
      case 0x00: return value;
      case 0x10: return value + here;
      case 0x30: return value + data;
      default: return Fail<uint64_t>();
    }
  }

 private:
  template <typename T>
  T Fail() {
    ok_ = false;
    return T{};
  }
  const uint8_t *begin_, *at_, *end_;
  uint64_t vaddr_;
  bool ok_ = true;
};

}  // namespace borescope::symbols
