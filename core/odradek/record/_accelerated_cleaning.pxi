# Windows cleaned by the map of compaction. Part of _accelerated.pyx.

cdef struct Verdict:
    int64_t kept
    int64_t bytes  # of the records that are kept
    int64_t newest  # their largest timestamp delta
    int64_t tombstones
    bint fresh


cdef class Cleaning:
    """One call of `clean_window`; the names are those of `Cleaned`."""

    cdef Window window
    cdef OffsetMap offsets
    cdef Output output
    cdef int64_t end_offset
    cdef int64_t now
    cdef int64_t new_horizon
    cdef bint expire
    cdef Py_ssize_t position
    cdef int64_t next_offset
    cdef int64_t records_in
    cdef int64_t records_out
    cdef int64_t tombstones
    cdef int64_t earliest
    cdef bint has_earliest
    cdef int64_t opaque
    cdef bint changed
    cdef Head head
    cdef uint8_t *marks  # a bit for each record of a batch: whether it is kept
    cdef size_t mark_room
    cdef Window payload  # of the batch at `position`, where that is compressed and was opened
    cdef const uint8_t *payload_start
    cdef const uint8_t *payload_end
    cdef const uint8_t *body  # what is left of it, to be compressed
    cdef bint unopenable
    cdef bint any_producers
    cdef bint producers_known
    cdef Window producers  # last offsets, ascending
    cdef const int64_t *last_offsets
    cdef Py_ssize_t last_offset_count

    def __cinit__(self):
        self.output = Output()
        self.next_offset = -1

    def __dealloc__(self):
        free(self.marks)

    cdef Step run(self) noexcept nogil:
        """Clean batches that are not compressed, until something is in the way."""
        cdef Head *head = &self.head
        cdef const uint8_t *batch
        cdef Step step
        while True:
            batch = self.window.start + self.position
            step = read_head(
                batch, self.window.end - batch, self.next_offset, self.end_offset, head
            )
            if step != DONE:
                return step
            if head.attributes & (CONTROLLING | TRANSACTION) or self.unopenable:
                step = self.pass_over()
            elif head.attributes & COMPRESSED == 0 or head.size == 61:
                step = self.clean(batch + 61, batch + head.size, False)
            elif self.payload_start != NULL:
                step = self.clean(self.payload_start, self.payload_end, True)
            else:
                return PACKED
            if step != DONE:
                return step
            self.go_on()

    cdef inline void go_on(self) noexcept nogil:
        self.position += self.head.size
        self.next_offset = self.head.last_offset + 1
        self.payload_start = NULL
        self.unopenable = False

    cdef Step pass_over(self) noexcept nogil:
        """Leave the batch as it is, unopened."""
        if not self.head.attributes & CONTROLLING:
            self.opaque += 1
            self.expire = False
        return self.keep(&self.head)

    cdef Step keep(self, const Head *head) noexcept nogil:
        return self.output.add(head, -1, self.position, head.size)

    cdef Step clean(self, const uint8_t *p, const uint8_t *end, bint packed) noexcept nogil:
        """Clean a batch whose records lie between `p` and `end`; nothing is done but for DONE."""
        cdef Head *head = &self.head
        cdef Head left = head[0]
        cdef Verdict verdict
        cdef Step step
        cdef int64_t counts[2]
        cdef int64_t size
        cdef bint dated = (head.attributes & HORIZON) != 0
        cdef int64_t horizon = head.base_timestamp
        cdef bint shifted = False
        if not is_sound(p, end, head, 0, counts):
            return self.pass_over()
        step = self.judge(p, end, self.expire and dated and self.now >= horizon, &verdict)
        if step != DONE:
            return step
        if verdict.kept == 0:
            step = self.empty()
        else:
            size = verdict.bytes
            if not dated and verdict.fresh and self.expire:
                shifted = self.can_shift(p, end, &size)
            if not shifted and verdict.kept == head.count:
                step = self.keep(head)
            else:
                left.count = verdict.kept
                if not left.attributes & APPEND_TIME:
                    left.max_timestamp = head.base_timestamp + verdict.newest
                if shifted:
                    horizon = self.new_horizon
                    left.base_timestamp = horizon
                    left.attributes |= HORIZON
                step = self.rewrite(p, end, &left, size, shifted, packed)
                if step == DONE or step == BODY:
                    self.changed = True
            if (step == DONE or step == BODY) and verdict.tombstones and (dated or shifted):
                self.earliest = min(self.earliest, horizon) if self.has_earliest else horizon
                self.has_earliest = True
        if step == DONE or step == BODY:
            self.records_in += head.count
            self.records_out += verdict.kept
            self.tombstones += verdict.tombstones
        return step

    cdef Step judge(
        self, const uint8_t *p, const uint8_t *end, bint expired, Verdict *verdict
    ) noexcept nogil:
        """Mark the records of the batch that stay, like `pure_compacting._survivors`."""
        cdef Head *head = &self.head
        cdef size_t mark_bytes = <size_t>head.count // 8 + 1
        cdef void *room
        cdef int64_t i
        cdef int j
        cdef int ahead = 0
        cdef int64_t first = head.base_offset - self.offsets.base_offset + 1
        cdef int64_t known
        cdef const uint8_t *before
        cdef Raw raw
        cdef uint64_t low[AHEAD]
        cdef uint64_t high[AHEAD]
        cdef int64_t numbers[AHEAD]
        cdef int64_t indexes[AHEAD]
        cdef int64_t sizes[AHEAD]
        cdef int64_t deltas[AHEAD]
        cdef bint dead[AHEAD]
        memset(verdict, 0, sizeof(Verdict))
        verdict.newest = INT64_MIN
        if mark_bytes > self.mark_room:
            room = realloc(self.marks, mark_bytes)
            if room == NULL:
                return NO_MEMORY
            self.marks = <uint8_t *>room
            self.mark_room = mark_bytes
        memset(self.marks, 0, mark_bytes)
        for i in range(head.count):
            before = p
            if not parse_record(&p, end, &raw):
                return CHANGED
            if raw.key_size >= 0:
                odradek_hash(raw.key, raw.key_size, self.offsets.seed, &low[ahead], &high[ahead])
                odradek_prefetch(self.offsets.start_of(high[ahead]))
                numbers[ahead] = first + raw.offset_delta
                indexes[ahead] = i
                sizes[ahead] = p - before
                deltas[ahead] = raw.timestamp_delta
                dead[ahead] = raw.value_size < 0
                ahead += 1
            if ahead == AHEAD or i == head.count - 1:
                for j in range(ahead):
                    known = self.offsets.find(low[j], high[j]).high & OFFSETS
                    if known and known > numbers[j]:
                        continue
                    if dead[j]:
                        if expired:
                            continue
                        verdict.tombstones += 1
                        if known and known == numbers[j]:
                            verdict.fresh = True
                    self.marks[indexes[j] >> 3] |= 1 << (indexes[j] & 7)
                    verdict.kept += 1
                    verdict.bytes += sizes[j]
                    verdict.newest = max(verdict.newest, deltas[j])
                ahead = 0
        return DONE

    cdef inline bint is_kept(self, int64_t index) noexcept nogil:
        return self.marks[index >> 3] >> (index & 7) & 1

    cdef bint can_shift(self, const uint8_t *p, const uint8_t *end, int64_t *size) noexcept nogil:
        """Whether the timestamps can be told from the horizon on, and the records' size then."""
        cdef Raw raw
        cdef const uint8_t *before
        cdef int64_t i
        cdef int64_t shift
        cdef int64_t delta
        cdef int64_t one
        cdef int64_t total = 0
        if not odradek_subtract(self.head.base_timestamp, self.new_horizon, &shift):
            return False
        for i in range(self.head.count):
            if not parse_record(&p, end, &raw):
                return False
            if self.is_kept(i):
                if not odradek_add(raw.timestamp_delta, shift, &delta):
                    return False
                one = shifted_size(&raw, p, delta)
                total += varint_size(one) + one
        size[0] = total
        return True

    cdef Step empty(self) noexcept nogil:
        """Remove a batch without records, or leave its header if it is its producer's last."""
        cdef Head left = self.head
        cdef Step step
        if self.any_producers:
            if not self.producers_known:
                return PRODUCERS
            if self.is_last(left.last_offset):
                if left.count == 0:
                    return self.keep(&left)
                if self.output.take(0) == NULL:
                    return ROOM
                left.attributes &= APPEND_TIME
                left.base_timestamp = -1
                left.count = 0
                self.changed = True
                return self.output.write(&left, 0)
        self.changed = True
        return DONE

    cdef bint is_last(self, int64_t offset) noexcept nogil:
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.last_offset_count
        cdef Py_ssize_t middle
        while low < high:
            middle = (low + high) // 2
            if self.last_offsets[middle] < offset:
                low = middle + 1
            else:
                high = middle
        return low < self.last_offset_count and self.last_offsets[low] == offset

    cdef Step rewrite(
        self,
        const uint8_t *p,
        const uint8_t *end,
        const Head *left,
        int64_t size,
        bint shifted,
        bint packed,
    ) noexcept nogil:
        """Write what is kept: a batch into the output, or the body of one that was compressed."""
        cdef uint8_t *body
        if packed:
            if shifted:  # records may become longer
                body = self.output.take_body(left, size)
            else:  # what stays moves to the front of what was decompressed
                body = <uint8_t *>p
                self.output.body_head = left[0]
                self.output.body_head.size = size
            if body == NULL:
                return NO_MEMORY
            self.body = body
            return BODY if self.fill(body, size, p, end, shifted) else CHANGED
        body = self.output.take(size)
        if body == NULL:
            return ROOM
        return self.output.write(left, size) if self.fill(body, size, p, end, shifted) else CHANGED

    cdef bint fill(
        self, uint8_t *at, int64_t size, const uint8_t *p, const uint8_t *end, bint shifted
    ) noexcept nogil:
        """Write the kept records to `at`; false when they are not `size` bytes, as they were."""
        cdef uint8_t *last = at + size
        cdef const uint8_t *before
        cdef Raw raw
        cdef int64_t i
        cdef int64_t shift = 0
        cdef int64_t delta
        cdef int64_t one
        if shifted:  # `can_shift` found that it does not overflow
            odradek_subtract(self.head.base_timestamp, self.new_horizon, &shift)
        for i in range(self.head.count):
            before = p
            if not parse_record(&p, end, &raw):
                return False
            if not self.is_kept(i):
                continue
            if not shifted:
                if p - before > last - at:
                    return False
                memmove(at, before, p - before)
                at += p - before
                continue
            if raw.key_size < 0 or not odradek_add(raw.timestamp_delta, shift, &delta):
                return False
            one = shifted_size(&raw, p, delta)
            if varint_size(one) + one > last - at:
                return False
            at = write_varint(at, one)
            at[0] = 0
            at = write_varint(at + 1, delta)
            at = write_varint(at, raw.offset_delta)
            at = write_varint(at, raw.key_size)
            memcpy(at, raw.key, p - raw.key)
            at += p - raw.key
        return at == last

    cdef int open(self, view, limit) except -1:
        """Decompress the batch at `position`, or say that it cannot be."""
        self.payload = None  # before there is another
        self.payload = unpack(view, self.position, &self.head, limit)
        if self.payload is None:
            self.unopenable = True
        else:
            self.payload_start = self.payload.start
            self.payload_end = self.payload.end
        return 0

    cdef int ask(self, last_of_producers) except -1:
        """Take the last offsets that the rest of the window may hold, in order."""
        low = self.head.last_offset
        found = sorted([offset for offset in last_of_producers if low <= offset < self.end_offset])
        self.producers = Window(array("q", found))
        self.last_offsets = <const int64_t *>self.producers.start
        self.last_offset_count = len(found)
        self.producers_known = True
        return 0

    cdef int pack(self, Breath breath) except -1:
        """Compress the body that is left of the batch at `position`; free what it was made of."""
        breath.after(self.output.body_head.size)
        compressed = self.output.compressed(self.body)
        self.payload = None
        self.output.drop_body()
        self.output.pack(compressed)
        self.go_on()
        return 0

    cdef object result(self, view, Breath breath):
        return Cleaned(
            self.position,
            self.output.metas(breath),
            self.output.slices(view, breath),
            self.changed,
            self.records_in,
            self.records_out,
            self.tombstones,
            self.output.bytes,
            self.earliest if self.has_earliest else None,
            self.opaque,
            self.next_offset,
        )


cdef inline int64_t shifted_size(
    const Raw *raw, const uint8_t *end, int64_t delta
) noexcept nogil:
    """Return the bytes behind the length of a record that ends at `end`, with another delta."""
    return (
        1
        + varint_size(delta)
        + varint_size(raw.offset_delta)
        + varint_size(raw.key_size)
        + (end - raw.key)
    )


def clean_window(
    view,
    OffsetMap offsets not None,
    *,
    end_offset,
    int64_t now_ms,
    int64_t delete_retention_ms,
    last_of_producers,
    limit,
    bint expire=True,
    breathe=no_breath,
):
    """See `odradek.record.pure_compacting.clean_window`."""
    cdef Cleaning work = Cleaning()
    cdef Step step
    cdef Breath breath = Breath(breathe)
    work.window = Window(view)
    work.offsets = offsets
    work.end_offset = clamp(end_offset)
    work.now = now_ms
    if not odradek_add(now_ms, delete_retention_ms, &work.new_horizon):
        work.new_horizon = INT64_MAX
    work.expire = expire
    work.any_producers = len(last_of_producers) > 0
    offsets.hold()
    try:
        while True:
            with nogil:
                step = work.run()
            if step == PACKED:
                work.open(view, limit)
                breath.after(work.head.size if work.payload is None else work.payload.buffer.len)
            elif step == BODY:
                work.pack(breath)
            elif step == ROOM:
                work.output.make_room(work.window.end - work.window.start - work.position)
            elif step == PRODUCERS:
                work.ask(last_of_producers)
            else:
                break
    finally:
        offsets.busy = False
    if step == NO_MEMORY:
        raise MemoryError
    if step == BROKEN:
        pure_compacting.read_batch(view, work.position, work.next_offset, end_offset)
    if step != END:
        changed()
    work.payload = None
    return work.result(view, breath)
