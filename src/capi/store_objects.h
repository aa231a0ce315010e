// capi/store_objects.h - the readers of the C ABI, and what is loaded from them.
#pragma once
#include <map>
#include <mutex>
#include <vector>

#include "capi/convert.h"
#include "snug/snug_load.h"
#include "snug/store.h"

struct snug_reader {
  snug::Reader reader;
  // What pointers were given to. Tensors that nobody asks for take no memory here.
  mutable std::mutex mutex = {};
  mutable std::map<size_t, const snug::TensorEntry> entries = {};
};

namespace snug::capi {

inline std::vector<TensorTarget> to_cpp(const snug_load_target* targets, size_t num_targets) {
  std::vector<TensorTarget> all;
  all.reserve(num_targets);
  for (const snug_load_target& target : span_of(targets, num_targets))
    all.push_back({target.idx, out(target.dst, target.dst_bytes)});
  return all;
}

}  // namespace snug::capi
