// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace borescope::codec {

// Protocol buffers' wire format, read in place. The generated classes are not used on bytes that we did not write, because they
// build an object of some hundred bytes for each empty message of two bytes; nor in the sampler, for their memory.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  // Moves to the next field; false at the end, and from the first malformed or mistyped field on (then ok() is false).
  bool Next();
  uint32_t field() const { return field_; }
  bool ok() const { return !bad_; }

  // The current field's value; another type than the one asked for makes the reader bad.
  uint64_t Varint();
  int64_t Int() { return static_cast<int64_t>(Varint()); }
  std::string_view Bytes();

  // Calls f(uint64_t) for each number of a repeated field, packed or not; f returns false to stop (the reader stays ok).
  template <typename F>
  void Varints(const F& f) {
    if (type_ == kVarint) {
      f(value_);
      return;
    }
    for (std::string_view packed = Bytes(); !bad_ && !packed.empty();) {
      uint64_t value = 0;
      if (!TakeVarint(&packed, &value)) bad_ = true;
      if (!bad_ && !f(value)) return;
    }
  }

 private:
  enum Type { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  static bool TakeVarint(std::string_view* from, uint64_t* value);

  std::string_view rest_, bytes_;
  uint64_t value_ = 0;
  uint32_t field_ = 0;
  int type_ = kVarint;
  bool bad_ = false;
};

// Appends fields to *out. Numbers that are 0 and empty strings are left out, as proto3 does.
class WireWriter {
 public:
  explicit WireWriter(std::string* out) : out_(out) {}
  void Varint(uint32_t field, uint64_t value);
  void Int(uint32_t field, int64_t value) { Varint(field, static_cast<uint64_t>(value)); }
  void Bytes(uint32_t field, std::string_view bytes);
  // As Bytes, but an empty message or string is written too: an entry of a repeated field.
  void Entry(uint32_t field, std::string_view bytes);
  // One number of a packed field, without a tag: collect them in a string of its own, then Bytes.
  void Packed(uint64_t value);

 private:
  std::string* out_;
};

}  // namespace borescope::codec
