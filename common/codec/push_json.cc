// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/base64.h"
#include "common/codec/push.h"

namespace borescope::codec {
namespace {

// Event by event, so that a body of millions of empty lists costs no memory.
class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Reader(const PushLimits& limits) : limits_(limits) {}

  Result<std::vector<PushSeries>> Take() {
    if (error_) return *std::move(error_);
    return std::move(all_);
  }

  bool null() override { return Scalar(nullptr); }
  bool boolean(bool) override { return Scalar("true or false"); }
  bool number_integer(number_integer_t) override { return Scalar("a number"); }
  bool number_unsigned(number_unsigned_t) override { return Scalar("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Scalar("a number"); }
  bool binary(binary_t&) override { return Scalar("binary"); }
  bool string(string_t& text) override {
    if (skipped_ > 0) return true;
    switch (at_) {
      case At::kLabelName: series().labels.back().first = std::move(text); break;
      case At::kLabelValue: series().labels.back().second = std::move(text); break;
      case At::kId: series().windows.back().id = std::move(text); break;
      case At::kProfile: {
        auto bytes = Base64Decode(text);
        if (!bytes) return Fail("rawProfile: it is no base64");
        series().windows.back().pprof = *std::move(bytes);
        break;
      }
      case At::kUnknown: break;
      default: return Fail(Expected("a text"));
    }
    return Leave();
  }
  bool start_object(size_t) override {
    if (skipped_ > 0 || at_ == At::kUnknown) return Skip();
    switch (at_) {
      case At::kBegin: at_ = At::kRequest; return true;
      case At::kSeriesList:
        if (all_.size() >= limits_.max_series) return FailTooMany(limits_.max_series, "series in one request");
        all_.emplace_back();
        at_ = At::kSeries;
        return true;
      case At::kLabelList:
        if (series().labels.size() >= limits_.max_labels) return FailTooMany(limits_.max_labels, "labels on one series");
        series().labels.emplace_back();
        at_ = At::kLabel;
        return true;
      case At::kSampleList:
        if (++windows_ > limits_.max_windows) return FailTooMany(limits_.max_windows, "profiles in one request");
        series().windows.emplace_back();
        at_ = At::kSample;
        return true;
      default: return Fail(Expected("an object"));
    }
  }
  bool key(string_t& name) override {
    if (skipped_ > 0) return true;
    object_ = at_;
    at_ = At::kUnknown;
    if (object_ == At::kRequest && name == "series") at_ = At::kSeriesField;
    if (object_ == At::kSeries && name == "labels") at_ = At::kLabelsField;
    if (object_ == At::kSeries && name == "samples") at_ = At::kSamplesField;
    if (object_ == At::kLabel && name == "name") at_ = At::kLabelName;
    if (object_ == At::kLabel && name == "value") at_ = At::kLabelValue;
    if (object_ == At::kSample && (name == "rawProfile" || name == "raw_profile")) at_ = At::kProfile;
    if (object_ == At::kSample && name == "ID") at_ = At::kId;
    return true;
  }
  bool end_object() override {
    if (skipped_ > 0) return Unskip();
    switch (at_) {
      case At::kSample: at_ = At::kSampleList; return true;
      case At::kLabel: at_ = At::kLabelList; return true;
      case At::kSeries: at_ = At::kSeriesList; return true;
      default: at_ = At::kEnd; return true;
    }
  }
  bool start_array(size_t) override {
    if (skipped_ > 0 || at_ == At::kUnknown) return Skip();
    switch (at_) {
      case At::kSeriesField: at_ = At::kSeriesList; return true;
      case At::kLabelsField: at_ = At::kLabelList; return true;
      case At::kSamplesField: at_ = At::kSampleList; return true;
      default: return Fail(Expected("a list"));
    }
  }
  bool end_array() override {
    if (skipped_ > 0) return Unskip();
    at_ = at_ == At::kSeriesList ? At::kRequest : At::kSeries;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Fail("the body is no JSON: see byte " + std::to_string(position));
  }

 private:
  // Where the next value stands: in a list, or behind a key of an object.
  enum class At {
    kBegin, kRequest, kSeriesField, kSeriesList, kSeries, kLabelsField, kLabelList, kLabel, kLabelName, kLabelValue,
    kSamplesField, kSampleList, kSample, kProfile, kId, kUnknown, kEnd
  };

  PushSeries& series() { return all_.back(); }
  // After a value behind a key: the object goes on.
  bool Leave() {
    at_ = object_;
    return true;
  }
  bool Skip() {
    ++skipped_;
    return true;
  }
  bool Unskip() { return --skipped_ > 0 || Leave(); }
  // null is a field that is not set.
  bool Scalar(const char* found) {
    if (skipped_ > 0) return true;
    bool behind_key = at_ == At::kUnknown || at_ == At::kSeriesField || at_ == At::kLabelsField || at_ == At::kSamplesField ||
                      at_ == At::kLabelName || at_ == At::kLabelValue || at_ == At::kProfile || at_ == At::kId;
    if (at_ == At::kUnknown || (behind_key && found == nullptr)) return Leave();
    return Fail(Expected(found == nullptr ? "null" : found));
  }
  std::string Expected(std::string_view found) const {
    std::string_view where = "the body", wanted = "an object";
    switch (at_) {
      case At::kSeriesField: where = "series", wanted = "a list"; break;
      case At::kSeriesList: where = "series"; break;
      case At::kLabelsField: where = "labels", wanted = "a list"; break;
      case At::kLabelList: where = "labels"; break;
      case At::kSamplesField: where = "samples", wanted = "a list"; break;
      case At::kSampleList: where = "samples"; break;
      case At::kLabelName: where = "name", wanted = "a text"; break;
      case At::kLabelValue: where = "value", wanted = "a text"; break;
      case At::kProfile: where = "rawProfile", wanted = "base64"; break;
      case At::kId: where = "ID", wanted = "a text"; break;
      default: break;
    }
    return std::string(where) + ": found " + std::string(found) + ", give " + std::string(wanted);
  }
  bool Fail(std::string message) {
    error_ = Error{ErrorCode::kInvalid, "push: " + std::move(message)};
    return false;
  }
  bool FailTooMany(size_t limit, std::string_view what) {
    error_ = Error{ErrorCode::kExhausted, "push: more than " + std::to_string(limit) + " " + std::string(what) + ", the limit: send less in one"};
    return false;
  }

  const PushLimits& limits_;
  std::vector<PushSeries> all_;
  std::optional<Error> error_;
  At at_ = At::kBegin, object_ = At::kBegin;  // object_: of the last key
  size_t windows_ = 0;
  size_t skipped_ = 0;  // depth within a value that is not known
};

}  // namespace

Result<std::vector<PushSeries>> DecodePushJson(std::string_view text, const PushLimits& limits) {
  Reader reader(limits);
  (void)nlohmann::json::sax_parse(text, &reader);
  return reader.Take();
}

}  // namespace borescope::codec
