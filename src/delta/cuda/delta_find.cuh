// delta/cuda/delta_find.cuh - the changes of one block, found by one warp: their
// classes, ranks and differences in the order of elements.
#pragma once
#include "delta/cuda/delta_planes.cuh"

namespace snug::cuda::deltas {

// The elements of one block in both versions, and the bytes behind the last one
// if the block is the tensor's last.
struct BlockInput {
  const u8 *base_tensor, *next_tensor;
  u32 first_chunk;  // of 16 bytes, of the block in its tensor: a register less
                    // than pointers
  u32 num_elems, num_bytes;

  __device__ __forceinline__ const u8* base() const { return base_tensor + u64{first_chunk} * 16; }
  __device__ __forceinline__ const u8* next() const { return next_tensor + u64{first_chunk} * 16; }
};

// Codes of one kind that follow each other in the unary stream: those of a
// subset's list, or the lengths of large differences.
struct Section {
  u32 start;     // the first one's number among all codes
  u32 list;      // its place among EncodeRoom::halves()
  u32 fixed_at;  // of the low bits
  u32 k;         // and kLengths
  static constexpr u32 kLengths = 0x100;
};

struct EncodeTable {
  uint4 sizes;  // of the classes up to the current row, as ClassCounts
  // Of the changes of each class.
  u32 counts[kNumClasses], num_large[kNumClasses], sum_of_widths[kNumClasses];
  Section sections[3 * kNumClasses];
};

// Shared memory of one warp. What lies in each part changes as the work goes
// on: for each change, two numbers in `list` and two in `sorted`, 16 bits each.
//
// Changes in `list` have a rank, from bit 13 on a class, and from bit 16 on a
// difference. Ranks in blocks of more than 2^13 elements (kLargeBlocks) leave
// no room for classes, which are in `classes` then.
template <bool kLargeBlocks>
struct EncodeRoom {
  static constexpr u32 kRankBits = 13;
  static constexpr u32 kPerChange = kLargeBlocks ? 9 : 8;  // bytes, without the payload

  EncodeTable* table;
  u32* list;     // changes in the order of elements
  u32* sorted;   // at first a RowTable
  u32* payload;  // a byte a change, of which it takes 6 bits in most blocks
  u32 max_changes, payload_words;

  // Of `num_bytes` at `memory`; a block has `block_elems`.
  __device__ EncodeRoom(u8* memory, u32 num_bytes, u32 block_elems)
      : table(reinterpret_cast<EncodeTable*>(memory)) {
    const u32 rest = num_bytes - static_cast<u32>(sizeof(EncodeTable));
    max_changes = min(rest / (kPerChange + 1) / 4 * 4, block_elems);
    list = reinterpret_cast<u32*>(memory + sizeof(EncodeTable));
    sorted = list + max_changes;
    payload = sorted + max_changes;
    payload_words = (rest - kPerChange * max_changes) / 4;
  }
  __device__ __forceinline__ void put_change(u32 i, u32 rank, u32 c, u32 difference) const {
    if (kLargeBlocks)
      classes()[i] = static_cast<u8>(c);
    else
      rank |= c << kRankBits;
    list[i] = rank | difference << 16;
  }
  __device__ __forceinline__ u32 class_of(u32 i, u32 change) const {
    return kLargeBlocks ? u32{classes()[i]} : change >> kRankBits & 7;
  }
  __device__ __forceinline__ u32 rank_of(u32 change) const {
    return change & (kLargeBlocks ? 0xFFFF : (1u << kRankBits) - 1);
  }
  __device__ u8* classes() const { return reinterpret_cast<u8*>(payload + payload_words); }
  // What a warp needs to encode any block of n elements.
  static constexpr std::size_t bytes_for_all(std::size_t n, std::size_t width) {
    return sizeof(EncodeTable) + kPerChange * n + delta::raw_payload_bytes(n, width) + 8;
  }
  // The same seen as 16-bit numbers, once changes are sorted: in `list`, the
  // ranks that an inverted subset lists; in `sorted`, from ranks_at() on the
  // ranks of all changes by class; from large_at() on, of each class,
  // magnitudes of large changes and then places of those that its subset of
  // large changes lists: together no more than it has changes.
  __device__ u16* halves() const { return reinterpret_cast<u16*>(list); }
  __device__ u32 ranks_at() const { return 2 * max_changes; }
  __device__ u32 large_at() const { return 3 * max_changes; }
};

// Of 1024 elements, what their changes need to know of them.
struct RowTable {
  uint4 counts[32];  // ClassCounts of all elements before the lane's
  uint4 planes[32];
  u16 places[kRow];  // of changes; no more than fit into `list`
};

struct Found {
  u32 num_changed = 0;
  bool overflow = false;  // more changes than there is room for; nothing else counts then
  int class_top = 0;
  u32 size = 0;                      // lane c: of class c
  u64 base_sum = 0, target_sum = 0;  // hash terms of this lane
};

template <u32 kWidth>
__device__ __forceinline__ u32 magnitude_of(u32 difference) {
  return difference >> (8 * kWidth - 1) ? (1u << 8 * kWidth) - difference : difference;
}

// The rounded mean key of the sample that delta_format.h describes. Its runs
// have 32 elements: two lanes each.
template <u32 kWidth>
__device__ int choose_class_top(const u8* base, u32 n, const delta::ClassRule& rule) {
  constexpr u32 kSample = delta::kSampleRuns * delta::kSampleRun;
  u32 sum = 0;
  if (n > kSample) {
    const u32 mask = static_cast<u32>(rule.max_key()) * 0x10001u,
              shift = static_cast<u32>(rule.key_shift);
    const u32 at = static_cast<u32>(delta::sample_start(lane() / 2, n)) + lane() % 2 * 16;
    u32 pairs = 0;
#pragma unroll
    for (u32 j = 0; j < kWidth; ++j) {
      const uint4 v = reinterpret_cast<const uint4*>(base + at * kWidth)[j];
      const auto add = [&](u32 word) {
        pairs += word >> shift & mask;
        if (kWidth == 1) pairs += word >> (shift + 8) & mask;
      };
      add(v.x), add(v.y), add(v.z), add(v.w);
    }
    sum = (pairs & 0xFFFF) + (pairs >> 16);
  } else {
    for (u32 i = lane(); i < n; i += 32)
      sum += static_cast<u32>(rule.key(element<kWidth>(base, i)));
  }
  sum = __reduce_add_sync(kFullMask, sum);
  const u32 num_sampled = max(min(n, kSample), 1u);
  return static_cast<int>((2 * sum + num_sampled) / (2 * num_sampled));
}

// Class, rank and difference of the changes of a row, which starts at element
// row_first; `list_at` of them are known from earlier rows.
template <u32 kWidth, class Room>
__device__ void collect_row(const BlockInput& in, u32 row_first, const RowTable& row, u32 count,
                            u32 list_at, const Room& room) {
  using Order = PlaneOrder<kWidth>;
  for (u32 i = lane(); i < count; i += 32) {
    const u32 place = row.places[i], owner = place / kGroup, e = place % kGroup;
    const uint4 bits = row.planes[owner];
    const Planes planes = {{bits.x, bits.y, bits.z}};
    const u32 c = planes.class_at(Order::bit_of(e));
    const u32 rank = reinterpret_cast<const u16*>(&row.counts[owner])[c] +
                     count_bits(planes.members(c) & Order::below(e));
    const u32 at = row_first + place;
    const u32 difference = (element<kWidth>(in.next(), at) - element<kWidth>(in.base(), at)) &
                           (kWidth == 2 ? 0xFFFF : 0xFF);
    room.put_change(list_at + i, rank, c, difference);
    atomicAdd(&room.table->counts[c], 1u);
    if (const u32 m = magnitude_of<kWidth>(difference); m > 1) {
      atomicAdd(&room.table->num_large[c], 1u);
      atomicAdd(&room.table->sum_of_widths[c], width_of_bits(m - 2));
    }
  }
}

// Asks for the lines of a row in both versions.
template <u32 kWidth>
__device__ __forceinline__ void prefetch_row(const BlockInput& in, u32 row) {
  constexpr u32 kLine = 128, kLines = kRow * kWidth / kLine;
  const u32 at = row * kRow * kWidth + lane() % kLines * kLine;
  if (lane() < 2 * kLines && at < in.num_bytes)
    prefetch_to_l2((lane() < kLines ? in.base() : in.next()) + at);
}

template <u32 kWidth, class Room>
__device__ __forceinline__ Found find_changes(const BlockInput& in, const delta::ClassRule& rule,
                                              const Room& room) {
  Found found;
  EncodeTable& table = *room.table;
  RowTable& row_table = *reinterpret_cast<RowTable*>(room.sorted);
  if (lane() < 3 * kNumClasses) table.counts[lane()] = 0;  // and the arrays behind it
  if (lane() == 31) table.sizes = make_uint4(0, 0, 0, 0);
  PairClasses classes(rule, 0);
  const u32 num_rows = (in.num_bytes + kRow * kWidth - 1) / (kRow * kWidth);
  for (u32 row = 0; row < num_rows; ++row) {
    const u32 first = row * kRow + lane() * kGroup;
    const u32 chunk = in.first_chunk + first * kWidth / 16;
    const u32 bytes_left = in.num_bytes > first * kWidth ? in.num_bytes - first * kWidth : 0;
    Group<kWidth> base, next;
    base.load(in.base_tensor + u64{chunk} * 16, bytes_left);
    next.load(in.next_tensor + u64{chunk} * 16, bytes_left);
    prefetch_row<kWidth>(in, row + 1);
    if (row == 0) {
      found.class_top = choose_class_top<kWidth>(in.base(), in.num_elems, rule);
      classes = PairClasses(rule, found.class_top);
    }
    u32 changed = changed_elements(base, next);
    found.target_sum += next.hash(2 * chunk, bytes_left);
    found.base_sum += base.hash(2 * chunk, bytes_left);
    if (first + kGroup > in.num_elems) {
      const u32 valid = in.num_elems > first ? in.num_elems - first : 0;
      changed &= (1u << valid) - 1;
      base.clear_from(valid);
    }
    const Planes planes = class_planes(base, classes);
    const ClassCounts own = planes.counts();
    ClassCounts upto = own;
    __syncwarp();  // nobody needs the row before this one any more
    if (lane() == 0) {
      const uint4 before = table.sizes;
      upto.add({{before.x, before.y, before.z, before.w}});
    }
    upto.scan();
    const u32 end = warp_scan(count_bits(changed)), count = __shfl_sync(kFullMask, end, 31);
    if (lane() == 31) table.sizes = upto.vector();
    if (found.num_changed + count > room.max_changes) {
      found.overflow = true;
      return found;
    }
    if (count == 0) continue;
    upto.subtract(own);
    row_table.counts[lane()] = upto.vector();
    row_table.planes[lane()] = make_uint4(planes.bits[0], planes.bits[1], planes.bits[2], 0);
    for (u32 at = end - count_bits(changed); changed != 0; changed &= changed - 1, ++at)
      row_table.places[at] = static_cast<u16>(lane() * kGroup + lowest_bit(changed));
    __syncwarp();
    collect_row<kWidth>(in, row * kRow, row_table, count, found.num_changed, room);
    found.num_changed += count;
  }
  __syncwarp();
  // Zeros behind the last element were counted too.
  const u32 num_zeros = num_rows * kRow - in.num_elems, zero_class = classes.of(0, 0) & 0xFFFF;
  if (lane() < kNumClasses)
    found.size =
        reinterpret_cast<const u16*>(&table.sizes)[lane()] - (lane() == zero_class ? num_zeros : 0);
  return found;
}

}  // namespace snug::cuda::deltas
