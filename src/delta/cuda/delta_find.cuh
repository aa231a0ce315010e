// delta/cuda/delta_find.cuh - one warp finds the changes of a block: their classes, ranks and
// differences, in the order of elements.
#pragma once
#include "delta/cuda/delta_planes.cuh"

namespace snug::cuda::deltas {

// The elements of one block in both versions. The last block has the tensor's tail bytes, too.
struct BlockInput {
  const std::uint8_t *base_tensor, *next_tensor;
  std::uint32_t first_chunk;  // of 16 bytes; a register less than pointers
  std::uint32_t num_elems, num_bytes;

  __device__ __forceinline__ const std::uint8_t* base() const {
    return base_tensor + std::uint64_t{first_chunk} * 16;
  }
  __device__ __forceinline__ const std::uint8_t* next() const {
    return next_tensor + std::uint64_t{first_chunk} * 16;
  }
};

// Consecutive codes of one kind in the unary stream: those of a subset's list, or the lengths of
// large differences.
struct Section {
  std::uint32_t start;     // number of its first code
  std::uint32_t list;      // its index in EncodeRoom::halves()
  std::uint32_t fixed_at;  // of the low bits
  std::uint32_t k;         // with kLengths or not
  static constexpr std::uint32_t kLengths = 0x100;
};

struct EncodeTable {
  uint4 sizes;  // ClassCounts up to the current row
  std::uint32_t counts[kNumClasses], num_large[kNumClasses], sum_of_widths[kNumClasses];
  Section sections[3 * kNumClasses];
};

// Shared memory of one warp: for each change, two 16-bit numbers in `list` and two in `sorted`. The
// parts are reused as the work proceeds.
//
// A change in `list` is a rank, from bit 13 on a class, from bit 16 on a difference. Ranks in
// blocks of more than 2^13 elements (kLargeBlocks) need the bits of the class, which is in
// `classes` then.
template <bool kLargeBlocks>
struct EncodeRoom {
  static constexpr std::uint32_t kRankBits = 13;
  static constexpr std::uint32_t kPerChange = kLargeBlocks ? 9 : 8;  // bytes, without the payload

  EncodeTable* table;
  std::uint32_t* list;     // changes in the order of elements
  std::uint32_t* sorted;   // at first a RowTable
  std::uint32_t* payload;  // a byte a change; most blocks take 6 bits
  std::uint32_t max_changes, payload_words;

  // Divides num_bytes at `memory`.
  __device__ EncodeRoom(std::uint8_t* memory, std::uint32_t num_bytes, std::uint32_t block_elems)
      : table(reinterpret_cast<EncodeTable*>(memory)) {
    const std::uint32_t rest = num_bytes - static_cast<std::uint32_t>(sizeof(EncodeTable));
    max_changes = min(rest / (kPerChange + 1) / 4 * 4, block_elems);
    list = reinterpret_cast<std::uint32_t*>(memory + sizeof(EncodeTable));
    sorted = list + max_changes;
    payload = sorted + max_changes;
    payload_words = (rest - kPerChange * max_changes) / 4;
  }
  __device__ __forceinline__ void put_change(std::uint32_t i, std::uint32_t rank, std::uint32_t c,
                                             std::uint32_t difference) const {
    if (kLargeBlocks)
      classes()[i] = static_cast<std::uint8_t>(c);
    else
      rank |= c << kRankBits;
    list[i] = rank | difference << 16;
  }
  __device__ __forceinline__ std::uint32_t class_of(std::uint32_t i, std::uint32_t change) const {
    return kLargeBlocks ? std::uint32_t{classes()[i]} : change >> kRankBits & 7;
  }
  __device__ __forceinline__ std::uint32_t rank_of(std::uint32_t change) const {
    return change & (kLargeBlocks ? 0xFFFF : (1u << kRankBits) - 1);
  }
  __device__ std::uint8_t* classes() const {
    return reinterpret_cast<std::uint8_t*>(payload + payload_words);
  }
  // Enough for any block of n elements.
  static constexpr std::size_t bytes_for_all(std::size_t n, std::size_t width) {
    return sizeof(EncodeTable) + kPerChange * n + delta::raw_payload_bytes(n, width) + 8;
  }
  // 16-bit numbers, once changes are sorted. In `list`: the ranks that inverted subsets list. In
  // `sorted`, from ranks_at() on: the ranks of all changes by class. From large_at() on, for each
  // class: the magnitudes of its large changes, then the places that its subset of large changes
  // lists, together no more than it has changes.
  __device__ std::uint16_t* halves() const { return reinterpret_cast<std::uint16_t*>(list); }
  __device__ std::uint32_t ranks_at() const { return 2 * max_changes; }
  __device__ std::uint32_t large_at() const { return 3 * max_changes; }
};

// What the changes among 1024 elements need to know of them.
struct RowTable {
  uint4 counts[32];  // ClassCounts of all elements before the lane's
  uint4 planes[32];
  std::uint16_t places[kRow];  // of changes, at most EncodeRoom::max_changes
};

struct Found {
  std::uint32_t num_changed = 0;
  bool overflow = false;  // too many changes for the room; the rest is not valid then
  int class_top = 0;
  std::uint32_t size = 0;                      // lane c: of class c
  std::uint64_t base_sum = 0, target_sum = 0;  // hash terms of this lane
};

template <unsigned kWidth>
__device__ __forceinline__ std::uint32_t magnitude_of(std::uint32_t difference) {
  return difference >> (8 * kWidth - 1) ? (1u << 8 * kWidth) - difference : difference;
}

// The rounded mean key of the sample that delta_format.h describes. Two lanes read a run of 32
// elements.
template <unsigned kWidth>
__device__ int choose_class_top(const std::uint8_t* base, std::uint32_t n,
                                const delta::ClassRule& rule) {
  constexpr std::uint32_t kSample = delta::kSampleRuns * delta::kSampleRun;
  std::uint32_t sum = 0;
  if (n > kSample) {
    const std::uint32_t mask = static_cast<std::uint32_t>(rule.max_key()) * 0x10001u,
                        shift = static_cast<std::uint32_t>(rule.key_shift);
    const std::uint32_t at =
        static_cast<std::uint32_t>(delta::sample_start(lane_id() / 2, n)) + lane_id() % 2 * 16;
    std::uint32_t pairs = 0;
#pragma unroll
    for (unsigned j = 0; j < kWidth; ++j) {
      const uint4 v = reinterpret_cast<const uint4*>(base + at * kWidth)[j];
      const auto add = [&](std::uint32_t word) {
        pairs += word >> shift & mask;
        if (kWidth == 1) pairs += word >> (shift + 8) & mask;
      };
      add(v.x), add(v.y), add(v.z), add(v.w);
    }
    sum = (pairs & 0xFFFF) + (pairs >> 16);
  } else {
    for (unsigned i = lane_id(); i < n; i += 32)
      sum += static_cast<std::uint32_t>(rule.key(element<kWidth>(base, i)));
  }
  sum = __reduce_add_sync(kAllLanes, sum);
  const std::uint32_t num_sampled = max(min(n, kSample), 1u);
  return static_cast<int>((2 * sum + num_sampled) / (2 * num_sampled));
}

// Lists class, rank and difference of the changes of a row, behind the `list_at` of earlier rows.
// The row starts at element row_first.
template <unsigned kWidth, class Room>
__device__ void collect_row(const BlockInput& in, std::uint32_t row_first, const RowTable& row,
                            std::uint32_t count, std::uint32_t list_at, const Room& room) {
  using Order = PlaneOrder<kWidth>;
  for (unsigned i = lane_id(); i < count; i += 32) {
    const std::uint32_t place = row.places[i], owner = place / kGroup, e = place % kGroup;
    const uint4 bits = row.planes[owner];
    const Planes planes = {{bits.x, bits.y, bits.z}};
    const std::uint32_t c = planes.class_at(Order::bit_of(e));
    const std::uint32_t rank = reinterpret_cast<const std::uint16_t*>(&row.counts[owner])[c] +
                               count_bits(planes.members(c) & Order::below(e));
    const std::uint32_t at = row_first + place;
    const std::uint32_t difference =
        (element<kWidth>(in.next(), at) - element<kWidth>(in.base(), at)) &
        (kWidth == 2 ? 0xFFFF : 0xFF);
    room.put_change(list_at + i, rank, c, difference);
    atomicAdd(&room.table->counts[c], 1u);
    if (const std::uint32_t m = magnitude_of<kWidth>(difference); m > 1) {
      atomicAdd(&room.table->num_large[c], 1u);
      atomicAdd(&room.table->sum_of_widths[c], width_of_bits(m - 2));
    }
  }
}

template <unsigned kWidth>
__device__ __forceinline__ void prefetch_row(const BlockInput& in, std::uint32_t row) {
  constexpr std::uint32_t kLine = 128, kLines = kRow * kWidth / kLine;
  const std::uint32_t at = row * kRow * kWidth + lane_id() % kLines * kLine;
  if (lane_id() < 2 * kLines && at < in.num_bytes)
    prefetch_l2((lane_id() < kLines ? in.base() : in.next()) + at);
}

template <unsigned kWidth, class Room>
__device__ __forceinline__ Found find_changes(const BlockInput& in, const delta::ClassRule& rule,
                                              const Room& room) {
  Found found;
  EncodeTable& table = *room.table;
  RowTable& row_table = *reinterpret_cast<RowTable*>(room.sorted);
  if (lane_id() < 3 * kNumClasses) table.counts[lane_id()] = 0;  // and the two arrays behind it
  if (lane_id() == 31) table.sizes = make_uint4(0, 0, 0, 0);
  PairClasses classes(rule, 0);
  const std::uint32_t num_rows = (in.num_bytes + kRow * kWidth - 1) / (kRow * kWidth);
  for (unsigned row = 0; row < num_rows; ++row) {
    const std::uint32_t first = row * kRow + lane_id() * kGroup;
    const std::uint32_t chunk = in.first_chunk + first * kWidth / 16;
    const std::uint32_t bytes_left =
        in.num_bytes > first * kWidth ? in.num_bytes - first * kWidth : 0;
    Group<kWidth> base, next;
    base.load(in.base_tensor + std::uint64_t{chunk} * 16, bytes_left);
    next.load(in.next_tensor + std::uint64_t{chunk} * 16, bytes_left);
    prefetch_row<kWidth>(in, row + 1);
    if (row == 0) {
      found.class_top = choose_class_top<kWidth>(in.base(), in.num_elems, rule);
      classes = PairClasses(rule, found.class_top);
    }
    std::uint32_t changed = changed_elements(base, next);
    found.target_sum += next.hash(2 * chunk, bytes_left);
    found.base_sum += base.hash(2 * chunk, bytes_left);
    if (first + kGroup > in.num_elems) {
      const std::uint32_t valid = in.num_elems > first ? in.num_elems - first : 0;
      changed &= (1u << valid) - 1;
      base.clear_from(valid);
    }
    const Planes planes = class_planes(base, classes);
    const ClassCounts own = planes.counts();
    ClassCounts upto = own;
    __syncwarp();  // the table of the previous row is free
    if (lane_id() == 0) {
      const uint4 before = table.sizes;
      upto.add({{before.x, before.y, before.z, before.w}});
    }
    upto.scan();
    const std::uint32_t end = warp_inclusive_sum_fused(count_bits(changed)),
                        count = __shfl_sync(kAllLanes, end, 31);
    if (lane_id() == 31) table.sizes = upto.vector();
    if (found.num_changed + count > room.max_changes) {
      found.overflow = true;
      return found;
    }
    if (count == 0) continue;
    upto.subtract(own);
    row_table.counts[lane_id()] = upto.vector();
    row_table.planes[lane_id()] = make_uint4(planes.bits[0], planes.bits[1], planes.bits[2], 0);
    for (unsigned at = end - count_bits(changed); changed != 0; changed &= changed - 1, ++at)
      row_table.places[at] = static_cast<std::uint16_t>(lane_id() * kGroup + lowest_bit(changed));
    __syncwarp();
    collect_row<kWidth>(in, row * kRow, row_table, count, found.num_changed, room);
    found.num_changed += count;
  }
  __syncwarp();
  // Zeros that pad the last row were counted, too.
  const std::uint32_t num_zeros = num_rows * kRow - in.num_elems,
                      zero_class = classes.of(0, 0) & 0xFFFF;
  if (lane_id() < kNumClasses)
    found.size = reinterpret_cast<const std::uint16_t*>(&table.sizes)[lane_id()] -
                 (lane_id() == zero_class ? num_zeros : 0);
  return found;
}

}  // namespace snug::cuda::deltas
