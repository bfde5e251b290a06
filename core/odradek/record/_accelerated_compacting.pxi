# The map of compaction, and windows noted in it. Part of _accelerated.pyx.
#
# Whole windows are worked through without the GIL; it is taken for batches that are compressed, and
# to hand out the result. Whatever the first look at a batch found is checked again where memory is
# written, so that a window that another thread changes meanwhile is an error and nothing worse.

cdef extern from *:
    """
    #define ODRADEK_OFFSETS ((INT64_C(1) << 40) - 1)
    """
    const int64_t OFFSETS "ODRADEK_OFFSETS"  # see `odradek.record.pure_compacting`

cdef enum:
    LOAD_PERCENT = 85
    AHEAD = 32  # records hashed before the first is looked up: their slots come from memory meanwhile
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    COMPRESSED = 0x07
    APPEND_TIME = 0x08
    TRANSACTION = 0x10
    CONTROLLING = 0x20
    HORIZON = 0x40

cdef enum Step:
    DONE
    END  # no further batch is to be looked at
    BROKEN  # a batch that `pure_compacting.read_batch` raises for
    PACKED  # a batch that is compressed
    FULL  # the map cannot take the batch
    ROOM  # the output cannot
    PRODUCERS  # whether a batch is the last of its producer is asked
    BODY  # the body of a batch, to be compressed
    CHANGED  # somebody writes to the window
    NO_MEMORY


cdef struct Slot:
    uint64_t low
    uint64_t high  # 24 bits of the hash, and 40 of the offset: from 1 on, 0 says empty


cdef struct Head:
    int64_t base_offset
    int64_t last_offset
    int64_t size
    int64_t leader_epoch
    int64_t attributes
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int64_t producer_epoch
    int64_t base_sequence
    int64_t count


cdef inline Step read_head(
    const uint8_t *start, Py_ssize_t left, int64_t least, int64_t end_offset, Head *head
) noexcept nogil:
    """Read the header of a batch and check its CRC, like `pure_compacting.read_batch`."""
    cdef int32_t length
    if left < 61:
        return END
    head.base_offset = <int64_t>odradek_big(start, 8)
    length = <int32_t>odradek_big(start + 8, 4)
    head.size = <int64_t>length + 12
    head.leader_epoch = <int32_t>odradek_big(start + LEADER_EPOCH_AT, 4)
    head.attributes = <int16_t>odradek_big(start + ATTRIBUTES_AT, 2)
    head.base_timestamp = <int64_t>odradek_big(start + 27, 8)
    head.max_timestamp = <int64_t>odradek_big(start + 35, 8)
    head.producer_id = <int64_t>odradek_big(start + 43, 8)
    head.producer_epoch = <int16_t>odradek_big(start + 51, 2)
    head.base_sequence = <int32_t>odradek_big(start + 53, 4)
    head.count = <int32_t>odradek_big(start + 57, 4)
    if start[MAGIC_AT] != 2 or head.size < 61:
        return BROKEN
    if head.base_offset < max(least, 0) or not odradek_add(
        head.base_offset, <int32_t>odradek_big(start + 23, 4), &head.last_offset
    ):
        return BROKEN
    if head.last_offset < head.base_offset or head.last_offset == INT64_MAX:
        return BROKEN
    if head.size > left or head.last_offset >= end_offset:
        return END
    if odradek_crc(start + ATTRIBUTES_AT, head.size - ATTRIBUTES_AT, True) != <uint32_t>odradek_big(
        start + CRC_AT, 4
    ):
        return BROKEN
    return DONE


cdef inline bint is_sound(
    const uint8_t *p, const uint8_t *end, const Head *head, int64_t least, int64_t *counts
) noexcept nogil:
    """Whether a payload is what its header says; how many keys from offset `least` on, and nulls."""
    cdef Raw raw
    cdef int64_t timestamp
    cdef int64_t previous = -1
    cdef int64_t last = head.last_offset - head.base_offset
    cdef int64_t i
    counts[0] = counts[1] = 0
    for i in range(head.count):
        if not parse_record(&p, end, &raw):
            return False
        if raw.offset_delta <= previous or raw.offset_delta > last:
            return False
        if not odradek_add(head.base_timestamp, raw.timestamp_delta, &timestamp):
            return False
        previous = raw.offset_delta
        if raw.key_size < 0:
            counts[1] += 1
        elif raw.offset_delta >= least:
            counts[0] += 1
    return head.count >= 0 and p == end


cdef class OffsetMap:
    """See `odradek.record.pure_compacting.OffsetMap`."""

    cdef Slot *table
    cdef uint64_t slots
    cdef uint64_t used
    cdef uint64_t seed[2]
    cdef bint busy
    cdef readonly int64_t base_offset
    cdef readonly int64_t capacity

    def __cinit__(self, max_bytes, base_offset, bytes seed not None, *, expected=None):
        slots = min(max_bytes // sizeof(Slot), 2**32 - 1)
        if expected is not None:
            slots = min(slots, max(expected * 100 // LOAD_PERCENT + 2, 2))
        if slots < 2:
            raise ValueError(f"a map takes at least {2 * sizeof(Slot)} bytes")
        read_seed(seed, self.seed)
        if not 0 <= base_offset <= INT64_MAX:
            raise ValueError(f"{base_offset} is no offset")
        self.base_offset = base_offset
        self.slots = slots
        self.capacity = slots * LOAD_PERCENT // 100
        self.table = <Slot *>calloc(self.slots, sizeof(Slot))
        if self.table == NULL:
            raise MemoryError(f"no {slots * sizeof(Slot)} bytes for a map of offsets")

    def __dealloc__(self):
        free(self.table)

    def __len__(self):
        return self.used

    @property
    def nbytes(self):
        """See `odradek.record.pure_compacting.OffsetMap.nbytes`."""
        return self.slots * sizeof(Slot)

    def get(self, bytes key not None):
        """See `odradek.record.pure_compacting.OffsetMap.get`."""
        cdef uint64_t low
        cdef uint64_t high
        cdef int64_t number
        odradek_hash(
            <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), self.seed, &low, &high
        )
        number = self.find(low, high).high & OFFSETS
        return None if number == 0 else self.base_offset + number - 1

    def put(self, bytes key not None, int64_t offset):
        """See `odradek.record.pure_compacting.OffsetMap.put`."""
        cdef uint64_t low
        cdef uint64_t high
        cdef int64_t number
        if not odradek_subtract(offset, self.base_offset - 1, &number) or number > OFFSETS:
            raise OverflowError(f"offset {offset} is too far from {self.base_offset}")
        if number < 1:
            return True
        self.hold()
        self.busy = False
        odradek_hash(
            <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), self.seed, &low, &high
        )
        return self.note(low, high, number)

    cdef int hold(self) except -1:
        """Begin to write: two threads at once would fill the last slot, and then look for ever."""
        if self.busy:
            raise RuntimeError("another thread writes to this map")
        self.busy = True
        return 0

    cdef inline const Slot *start_of(self, uint64_t high) noexcept nogil:
        return &self.table[(high >> 32) * self.slots >> 32]

    cdef inline Slot *find(self, uint64_t low, uint64_t high) noexcept nogil:
        """Return the slot that a hash has, or the empty one it would get; one is always empty."""
        cdef Slot *slot = <Slot *>self.start_of(high)
        cdef const Slot *end = self.table + self.slots
        cdef uint64_t tag = high << 40
        while slot.high & OFFSETS:
            if slot.low == low and slot.high - tag <= <uint64_t>OFFSETS:
                break
            slot += 1
            if slot == end:
                slot = self.table
        return slot

    cdef inline bint note(self, uint64_t low, uint64_t high, int64_t number) noexcept nogil:
        cdef Slot *slot = self.find(low, high)
        cdef uint64_t known = slot.high & OFFSETS
        if known == 0:
            if self.used >= <uint64_t>self.capacity:
                return False
            self.used += 1
            slot.low = low
        if <uint64_t>number > known:
            slot.high = high << 40 | <uint64_t>number
        return True

    cdef Step note_payload(
        self, const uint8_t *p, const uint8_t *end, const Head *head, Noting *noting
    ) noexcept nogil:
        """Note the keys of a batch whose records lie between `p` and `end`."""
        cdef int64_t counts[2]
        cdef int64_t least
        cdef int64_t first  # the number that the map has for the batch's base offset
        cdef int64_t number
        cdef Raw raw
        cdef int64_t i
        cdef int j
        cdef int ahead = 0
        cdef uint64_t low[AHEAD]
        cdef uint64_t high[AHEAD]
        cdef int64_t numbers[AHEAD]
        if not is_sound(p, end, head, self.base_offset - head.base_offset, counts):
            noting.passed_over += 1
            return DONE
        if self.used == 0 and head.last_offset - self.base_offset >= OFFSETS:
            self.base_offset = head.base_offset
            is_sound(p, end, head, 0, counts)
        least = self.base_offset - head.base_offset
        if counts[0] > self.capacity:
            noting.passed_over += 1
        elif counts[0]:
            if <int64_t>self.used + counts[0] > self.capacity:
                return FULL
            if head.last_offset - self.base_offset >= OFFSETS:
                return FULL
            first = head.base_offset - self.base_offset + 1
            for i in range(head.count):
                if not parse_record(&p, end, &raw):
                    return CHANGED
                if raw.key_size >= 0 and raw.offset_delta >= least:
                    number = first + raw.offset_delta
                    if number > OFFSETS:
                        return CHANGED
                    odradek_hash(raw.key, raw.key_size, self.seed, &low[ahead], &high[ahead])
                    odradek_prefetch(self.start_of(high[ahead]))
                    numbers[ahead] = number
                    ahead += 1
                if ahead == AHEAD or i == head.count - 1:
                    for j in range(ahead):
                        if not self.note(low[j], high[j], numbers[j]):
                            return CHANGED
                    ahead = 0
        noting.keyless += counts[1]
        return DONE

    cdef Step note_batches(
        self, const uint8_t *start, Py_ssize_t size, int64_t end_offset, Noting *noting
    ) noexcept nogil:
        """Note batches that are not compressed, until something is in the way."""
        cdef Step step
        cdef Head *head = &noting.head
        cdef const uint8_t *batch
        while True:
            batch = start + noting.position
            step = read_head(
                batch, size - noting.position, noting.next_offset, end_offset, head
            )
            if step != DONE:
                return step
            if head.attributes & (CONTROLLING | TRANSACTION):
                noting.passed_over += not head.attributes & CONTROLLING
            elif head.attributes & COMPRESSED and head.size > 61:
                return PACKED
            else:
                step = self.note_payload(batch + 61, batch + head.size, head, noting)
                if step != DONE:
                    return step
            noting.position += head.size
            noting.next_offset = head.last_offset + 1


cdef struct Noting:
    Py_ssize_t position
    int64_t next_offset
    int64_t keyless
    int64_t passed_over
    Head head


def note_window(
    view, OffsetMap offsets not None, end_offset, *, limit, breathe=no_breath
):
    """See `odradek.record.pure_compacting.note_window`."""
    cdef Window window = Window(view)
    cdef Window payload
    cdef Py_ssize_t size = window.end - window.start
    cdef int64_t end = clamp(end_offset)
    cdef Noting noting
    cdef Step step
    cdef Breath breath = Breath(breathe)
    memset(&noting, 0, sizeof(Noting))
    noting.next_offset = -1
    offsets.hold()
    try:
        while True:
            with nogil:
                step = offsets.note_batches(window.start, size, end, &noting)
            if step == PACKED:
                payload = None  # before there is another
                payload = unpack(view, noting.position, &noting.head, limit)
                if payload is None:
                    noting.passed_over += 1
                    step = DONE
                else:
                    with nogil:
                        step = offsets.note_payload(
                            payload.start, payload.end, &noting.head, &noting
                        )
                breath.after(noting.head.size if payload is None else payload.buffer.len)
                if step == DONE:
                    noting.position += noting.head.size
                    noting.next_offset = noting.head.last_offset + 1
                    continue
            if step == BROKEN:
                pure_compacting.read_batch(view, noting.position, noting.next_offset, end_offset)
            if step == BROKEN or step == CHANGED:
                changed()
            break
    finally:
        offsets.busy = False
    if noting.next_offset < 0 and size >= 61:
        noting.next_offset = noting.head.base_offset
    return Noted(
        noting.position, noting.next_offset, step == FULL, noting.keyless, noting.passed_over
    )


cdef class Breath:
    """Counts what was worked with the GIL, and calls `breathe` in time."""

    cdef object breathe
    cdef int64_t worked

    def __cinit__(self, breathe):
        self.breathe = breathe

    cdef int after(self, int64_t size) except -1:
        """A batch of `size` bytes uncompressed was opened, or made."""
        return self.count(1 + (size >> 14))  # as `odradek.record.windows.cost`

    cdef int count(self, int64_t worked) except -1:
        self.worked += worked
        if self.worked >= BREATH_COST:
            self.worked = 0
            self.breathe()
        return 0


cdef int64_t clamp(number) except? -1:
    """Return a bound as 64 bits hold it: beyond them there are no offsets."""
    return max(min(number, INT64_MAX), INT64_MIN)


cdef Window unpack(view, Py_ssize_t position, const Head *head, limit):
    """Return the payload of a compressed batch, or None where it cannot be opened."""
    try:
        payload = decompress(
            head.attributes & COMPRESSED, view[position + 61 : position + head.size], limit
        )
    except KafkaError:
        return None
    return Window(payload)
