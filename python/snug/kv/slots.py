"""Host memory for compressed blocks: slots of one size, and other memory for those that need more.

A slot is smaller than a block, so that more blocks have room in the same memory. Where a block does
not shrink that far, its frame is kept apart, in memory beside the slots, until the slot is used
again. vLLM cannot be told that a store failed, so that memory has no limit; a warning tells when it
becomes much.
"""

_ALIGN = 512  # of rows, for copies by a GPU
_MUCH = 0.05  # of the slots' own memory


def plan_slots(budget_bytes, block_bytes, ratio):
    """How many slots a budget has room for, and the size of one."""
    if not 0 < ratio <= 1.1:
        raise ValueError(f"slot_ratio is the size of a slot over that of a block, at most 1.1, not "
                         f"{ratio}")
    slot_bytes = -(-int(block_bytes * ratio) // _ALIGN) * _ALIGN
    return int(budget_bytes) // slot_bytes, slot_bytes


class SlotStore:
    """`rows` is an array of num_slots x slot_bytes bytes, of numpy or torch. `warn` is called with
    a sentence, each time that twice as much is kept apart as at the last."""

    def __init__(self, rows, warn=lambda text: None):
        self.rows, self.slot_bytes = rows, rows.shape[1]
        self._sizes, self._apart = {}, {}
        self.apart_bytes, self.num_apart = 0, 0
        self._warn, self._warn_above = warn, _MUCH * rows.shape[0] * rows.shape[1]

    def fits(self, num_bytes):
        return num_bytes <= self.slot_bytes

    def keep(self, slot, num_bytes):
        """The frame is in the row."""
        self._forget(slot)
        self._sizes[slot] = num_bytes

    def keep_apart(self, slot, frame):
        self._forget(slot)
        self._sizes[slot] = len(frame)
        self._apart[slot] = frame
        self.apart_bytes += len(frame)
        self.num_apart += 1
        if self.apart_bytes > self._warn_above:
            self._warn_above = 2 * self.apart_bytes
            self._warn(f"{len(self._apart)} blocks did not fit into their slots, and take "
                       f"{self.apart_bytes} bytes of memory beyond cpu_bytes_to_use. Set slot_ratio "
                       "higher, or leave out spec_name and spec_module_path.")

    def place(self, slot):
        """The size of the frame, and the frame itself if it is not in the row."""
        return self._sizes[slot], self._apart.get(slot)

    def frame(self, slot):
        """All bytes of the frame, and no more."""
        num_bytes, apart = self.place(slot)
        return apart if apart is not None else self.rows[slot][:num_bytes]

    def _forget(self, slot):
        apart = self._apart.pop(slot, None)
        if apart is not None:
            self.apart_bytes -= len(apart)
