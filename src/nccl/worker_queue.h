// nccl/worker_queue.h - how the plugin's threads talk to codec workers on the GPU: through memory
// alone. No thread of the plugin calls CUDA, and no worker waits for the plugin.
//
// A crew is the workers of one launch. Orders (chunks to encode or decode) are numbered and stand
// in a ring of boxes in host memory that the GPU reads and writes. The crew's dispatcher takes them
// in order and cuts them into tickets, one a codec block; workers draw tickets from one counter.
// A crew leaves without asking: it writes the first number that it did not take. Whoever posted
// that number or a later one sees it and does the work itself. So no order is lost when a crew
// leaves, and nobody waits for a crew that is gone.
//
// The same code runs on the GPU (cuda/workers.cu) and on CPU threads that play the workers (tests).
// A Team is the threads of the dispatcher: a warp, or one CPU thread. It also says how memory is
// read and written: *_host for memory that host and GPU share, the others within the GPU. Loads
// acquire and stores release. A peek does not acquire until acquire_host; store_after_fence
// releases what came before the last fence.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define SNUG_WORKER_CODE __host__ __device__ __forceinline__
#else
#define SNUG_WORKER_CODE inline
#endif

namespace snug::nccl {

// Powers of two: numbers wrap around.
inline constexpr std::uint32_t kOrderBoxes = 256;
inline constexpr std::uint32_t kMaxOrderBlocks = 64;
inline constexpr std::uint32_t kTicketRing = 2 * kOrderBoxes * kMaxOrderBlocks;
inline constexpr std::uint32_t kMaxWorkers = 1024;
inline constexpr std::uint32_t kMaxLaunches = 1024;
static_assert(kOrderBoxes * kMaxOrderBlocks + kMaxWorkers <= kTicketRing);

// A crew without orders for so long leaves. One whose NCCL kernel has ended stays while messages
// are still being sent, but no longer than kMostLingerNs.
inline constexpr std::uint64_t kIdleNs = 100'000'000, kMostLingerNs = 20'000'000;

enum class OrderKind : std::uint8_t { kEncode, kDecode };

struct Order {
  std::uint64_t tensor, frame;  // addresses that the GPU can use
  std::uint32_t tensor_bytes;
  std::uint32_t frame_bytes;  // kEncode: room
  std::uint32_t num_blocks;   // 1 to kMaxOrderBlocks
  OrderKind kind;
  std::uint8_t dtype, codec, log2_block;
};
static_assert(sizeof(Order) == 32);

// Written by workers; `number` last.
struct alignas(16) OrderResult {
  std::uint32_t number;
  std::uint32_t code;       // of snug::Code
  std::uint32_t num_bytes;  // kEncode: of the frame
  std::uint32_t zero;
};

// In host memory.
struct WorkerBoard {
  // Written by the plugin: orders, then their stamps (crew << 32 | number).
  alignas(128) std::uint64_t stamps[kOrderBoxes];
  Order orders[kOrderBoxes];
  std::uint32_t num_sends;  // messages that are being sent, so that more orders may come
  std::uint64_t idle_ns;    // kIdleNs
  // Written by workers.
  alignas(128) OrderResult results[kOrderBoxes];
  alignas(128) std::uint64_t closed;  // last crew that left << 32 | first number it did not take
  std::uint32_t opened;               // the newest crew
  std::uint64_t orders_taken, worker_ns;  // worker_ns: sum over thread blocks
  std::uint64_t idle_exits;               // crews that left for lack of orders
};

// One for all launches of the same stream, and one for each launch in a CUDA graph: launches that
// share it never run at the same time. All zero between launches.
struct CrewLaunch {
  std::uint32_t num_arrived;  // thread blocks; the first one dispatches
  std::uint32_t decision;     // kOpened, kRefused
  std::uint32_t num_left;     // workers

  static constexpr std::uint32_t kOpened = 1, kRefused = 2;
};

// In device memory: what a crew shares, and what it leaves to the next.
struct WorkerFloor {
  std::uint32_t started, ended;  // NCCL kernels that crews were launched for
  std::uint32_t owner;           // 1: a crew is at work
  std::uint32_t num_crews;
  std::uint32_t next_number, next_ticket, tickets_out;
  std::uint64_t tickets[kTicketRing];  // ticket << 32 | box << 16 | block
  Order orders[kOrderBoxes];
  std::uint32_t numbers[kOrderBoxes];  // of these orders
  CrewLaunch launches[kMaxLaunches];
};

// The first number and ticket are 1, so that zeroed memory has neither.
SNUG_WORKER_CODE void clear_floor(WorkerFloor& floor) {
  floor.next_number = floor.next_ticket = floor.tickets_out = 1;
}

struct Ticket {
  static constexpr std::uint32_t kLeave = 0xFFFF;
  std::uint32_t box, block;
  SNUG_WORKER_CODE bool is_end() const { return box == kLeave; }
};

// ---- the dispatcher ----------------------------------------------------------------

// Finds orders, makes tickets, and decides when the crew leaves.
template <class Team>
class Dispatcher {
 public:
  SNUG_WORKER_CODE Dispatcher(WorkerBoard& board, WorkerFloor& floor, CrewLaunch& launch,
                              std::uint32_t num_workers, std::uint32_t num_blocks)
      : board_(board),
        floor_(floor),
        launch_(launch),
        num_workers_(num_workers),
        num_blocks_(num_blocks) {}

  // False: another crew is at work, and this one ends at once.
  SNUG_WORKER_CODE bool open(bool may_linger = true) {
    may_linger_ = may_linger;
    if (Team::lane() == 0) {
      Team::add(&floor_.started, 1u);
      is_owner_ = Team::exchange(&floor_.owner, 1u) == 0;
      if (is_owner_) {
        crew_ = Team::add(&floor_.num_crews, 1u) + 1;
        number_ = floor_.next_number;
        ticket_ = floor_.tickets_out;
        Team::store_host(&board_.opened, crew_);
      }
      Team::store(&launch_.decision, is_owner_ ? CrewLaunch::kOpened : CrewLaunch::kRefused);
    }
    is_owner_ = Team::first(is_owner_ ? 1u : 0u) != 0;
    crew_ = Team::first(crew_);
    number_ = Team::first(number_);
    ticket_ = Team::first(ticket_);
    idle_ns_ = board_.idle_ns;
    begun_ = last_order_ = over_since_ = Team::now_ns();
    return is_owner_;
  }

  // `on_order(order, box)` prepares for an order, on the lane that found it.
  template <class OnOrder>
  SNUG_WORKER_CODE void serve(OnOrder on_order) {
    do {
      if (take_orders(on_order)) last_order_ = Team::now_ns();
    } while (!wants_to_leave());
    close();
  }

 private:
  // Each lane looks at one of the next boxes. True if there were orders.
  template <class OnOrder>
  SNUG_WORKER_CODE bool take_orders(OnOrder& on_order) {
    const std::uint32_t number = number_ + Team::lane(), box = number % kOrderBoxes;
    const std::uint64_t stamp = Team::peek_host(&board_.stamps[box]);
    const std::uint32_t in_row = Team::leading(static_cast<std::uint32_t>(stamp) == number);
    if (in_row == 0) return false;
    Team::acquire_host(&board_.stamps[box]);
    // Stamps of an earlier crew: their posters did the work themselves.
    const bool is_mine = Team::lane() < in_row && stamp >> 32 == crew_;
    Order order{};
    if (is_mine) order = Team::load_order(&board_.orders[box]);
    const std::uint32_t before = Team::sum_before(order.num_blocks);
    if (is_mine) {
      floor_.orders[box] = order;
      floor_.numbers[box] = number;
      on_order(order, box);
      Team::fence();
      for (std::uint32_t i = 0; i < order.num_blocks; ++i) put_ticket(ticket_ + before + i, box, i);
    }
    number_ += in_row;
    ticket_ += Team::last(before + order.num_blocks);
    num_taken_ += Team::count(is_mine);
    return true;
  }

  SNUG_WORKER_CODE void put_ticket(std::uint32_t ticket, std::uint32_t box, std::uint32_t block) {
    Team::store_after_fence(&floor_.tickets[ticket % kTicketRing],
                            std::uint64_t{ticket} << 32 | box << 16 | block);
  }

  SNUG_WORKER_CODE bool wants_to_leave() {
    std::uint32_t leaves = 0;
    if (Team::lane() == 0) {
      const bool is_over =
          static_cast<std::int32_t>(Team::load(&floor_.ended) - Team::load(&floor_.started)) >= 0;
      const std::uint64_t now = Team::now_ns();
      is_idle_ = now - last_order_ > idle_ns_;
      if (!was_over_) over_since_ = now;
      was_over_ = is_over;
      leaves = is_idle_ || (is_over && (!may_linger_ || now - over_since_ > kMostLingerNs ||
                                        Team::load_host(&board_.num_sends) == 0));
    }
    return Team::first(leaves) != 0;
  }

  SNUG_WORKER_CODE void close() {
    if (Team::lane() == 0) {
      floor_.next_number = number_;
      floor_.tickets_out = ticket_ + num_workers_;
      Team::store_host(&board_.orders_taken, board_.orders_taken + num_taken_);
      Team::store_host(&board_.idle_exits, board_.idle_exits + (is_idle_ ? 1 : 0));
      Team::store_host(&board_.worker_ns,
                       board_.worker_ns + (Team::now_ns() - begun_) * num_blocks_);
      Team::store_host(&board_.closed, std::uint64_t{crew_} << 32 | number_);
    }
    Team::fence();
    for (std::uint32_t i = Team::lane(); i < num_workers_; i += Team::kSize)
      put_ticket(ticket_ + i, Ticket::kLeave, 0);
  }

  WorkerBoard& board_;
  WorkerFloor& floor_;
  CrewLaunch& launch_;
  const std::uint32_t num_workers_, num_blocks_;
  bool is_owner_ = false, is_idle_ = false, was_over_ = false, may_linger_ = true;
  std::uint32_t crew_ = 0, number_ = 0, ticket_ = 0, num_taken_ = 0;
  std::uint64_t idle_ns_ = 0, begun_ = 0, last_order_ = 0, over_since_ = 0;
};

// ---- workers: one thread of each calls these ---------------------------------------

// By one thread of each thread block, at its start: whether it is the one that dispatches.
template <class Team>
SNUG_WORKER_CODE bool arrive(CrewLaunch& launch) {
  return Team::add(&launch.num_arrived, 1u) == 0;
}

// False: there is nothing to do for this crew.
template <class Team>
SNUG_WORKER_CODE bool is_opened(CrewLaunch& launch) {
  std::uint32_t decision;
  while ((decision = Team::load(&launch.decision)) == 0) Team::pause();
  return decision == CrewLaunch::kOpened;
}

// Waits for work. Tickets are drawn in order, so every block before this one has been begun.
template <class Team>
SNUG_WORKER_CODE Ticket next_ticket(WorkerFloor& floor) {
  const std::uint32_t ticket = Team::add(&floor.next_ticket, 1u);
  const std::uint64_t& place = floor.tickets[ticket % kTicketRing];
  while (Team::peek(&place) >> 32 != ticket) Team::pause();
  const std::uint64_t word = Team::load(&place);
  return {static_cast<std::uint32_t>(word >> 16 & 0xFFFF),
          static_cast<std::uint32_t>(word & 0xFFFF)};
}

// After the last block of an order; everything it wrote must be visible to the host.
template <class Team>
SNUG_WORKER_CODE void report(WorkerBoard& board, const WorkerFloor& floor, std::uint32_t box,
                             std::uint32_t code, std::uint32_t num_bytes) {
  OrderResult& result = board.results[box];
  result.code = code;
  result.num_bytes = num_bytes;
  Team::store_host(&result.number, floor.numbers[box]);
}

// The end of a worker. The last one makes room for the next crew.
template <class Team>
SNUG_WORKER_CODE void leave(WorkerFloor& floor, CrewLaunch& launch, std::uint32_t num_workers) {
  Team::fence();
  if (Team::add(&launch.num_left, 1u) + 1 < num_workers) return;
  const bool was_owner = Team::load(&launch.decision) == CrewLaunch::kOpened;
  launch = {};
  Team::fence();
  if (was_owner) Team::exchange(&floor.owner, 0u);
}

// Behind NCCL's kernel.
template <class Team>
SNUG_WORKER_CODE void mark_end(WorkerFloor& floor) {
  Team::add(&floor.ended, 1u);
}

}  // namespace snug::nccl
