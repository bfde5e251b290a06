# Payloads into records. Part of _accelerated.pyx.

cdef class Window:
    """A buffer, held as long as this."""

    cdef Py_buffer buffer
    cdef const uint8_t *start
    cdef const uint8_t *end
    cdef bint held

    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.buffer, PyBUF_SIMPLE)
        self.held = True
        self.start = <const uint8_t *>self.buffer.buf
        self.end = self.start + self.buffer.len

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef struct Raw:
    int64_t timestamp_delta
    int64_t offset_delta
    const uint8_t *key
    int64_t key_size
    const uint8_t *value
    int64_t value_size
    const uint8_t *headers
    int64_t header_count


cdef inline bint read_varint(const uint8_t **at, const uint8_t *end, int64_t *value) noexcept nogil:
    """Read one varint, if it ends before `end` and has no more than 64 bits."""
    cdef const uint8_t *p = at[0]
    cdef uint64_t zigzag
    cdef uint64_t byte
    cdef int shift = 7
    if p >= end:
        return False
    zigzag = p[0]
    p += 1
    if zigzag > 127:
        zigzag &= 127
        while True:
            if p >= end:
                return False
            byte = p[0]
            p += 1
            if shift == 63 and byte > 1:
                return False
            zigzag |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
    value[0] = <int64_t>((zigzag >> 1) ^ (0 - (zigzag & 1)))
    at[0] = p
    return True


cdef inline bint read_field(
    const uint8_t **at, const uint8_t *end, const uint8_t **field, int64_t *size
) noexcept nogil:
    """Read a length and the bytes it counts, if they end before `end`; a negative one is null."""
    if not read_varint(at, end, size):
        return False
    field[0] = at[0]
    if size[0] > 0:
        if size[0] > end - at[0]:
            return False
        at[0] += size[0]
    return True


cdef inline bint parse_record(const uint8_t **at, const uint8_t *end, Raw *raw) noexcept nogil:
    """Read one record, if it is whole and sound and ends before `end`, and go behind it."""
    cdef const uint8_t *p = at[0]
    cdef const uint8_t *field
    cdef int64_t size
    cdef int64_t i
    if not read_varint(&p, end, &size) or size < MIN_RECORD_SIZE - 1 or size > end - p:
        return False
    end = p + size
    p += 1
    if not (
        read_varint(&p, end, &raw.timestamp_delta)
        and read_varint(&p, end, &raw.offset_delta)
        and INT32_MIN <= raw.offset_delta <= INT32_MAX
        and read_field(&p, end, &raw.key, &raw.key_size)
        and read_field(&p, end, &raw.value, &raw.value_size)
        and p < end
    ):
        return False
    if p[0] == 0:
        raw.header_count = 0
        p += 1
    else:
        if not read_varint(&p, end, &raw.header_count):
            return False
        if raw.header_count <= 0 or raw.header_count > (end - p) // 2:
            return False
        raw.headers = p
        for i in range(raw.header_count):
            if not read_field(&p, end, &field, &size) or size < 0:
                return False
            if not read_field(&p, end, &field, &size):
                return False
    if p != end:
        return False
    at[0] = p
    return True


cdef inline object take(const uint8_t *field, int64_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *>field, size)


cdef int changed() except -1:
    """Raise: making objects may run the program's finalizers, and these may write to the buffer."""
    raise BufferError("the batch was changed while it was decoded")


cdef tuple take_headers(const Raw *raw, const uint8_t *end):
    """Make the headers of a record that `parse_record` found sound."""
    cdef const uint8_t *p = raw.headers
    cdef const uint8_t *field = NULL
    cdef int64_t size = 0
    cdef int64_t i
    cdef list headers = []
    for i in range(raw.header_count):
        if not read_field(&p, end, &field, &size) or size < 0:
            changed()
        name = PyUnicode_DecodeUTF8(<const char *>field, size, "replace")
        if not read_field(&p, end, &field, &size):
            changed()
        headers.append((name, take(field, size)))
    return tuple(headers)


cdef list pins = [None] * PINS
cdef int next_pin = 0
cdef int64_t unpinned = 0


cdef int pin() except -1:
    """Keep memory for the next batch, at most PINS times what CPython allocates at once (1 MiB).

    When a program drops a large batch, all objects in an arena of CPython's allocator go, the arena
    is given back to the system, and the next batch takes it again, page by page: decoding 800 KB
    of 200-byte values over and over took 0.87 ms, of which the page faults were 0.54. An object of
    a Record's size, now and then among the records, keeps the arena.
    """
    global next_pin, unpinned
    unpinned = 0
    pins[next_pin] = odradek_record(Record, None, None, None, None, NOTHING)
    next_pin = (next_pin + 1) % PINS
    return 0


def decode(payload, int64_t count, int64_t base_offset, int64_t base_timestamp, append_time):
    """See `odradek.record.pure.decode`."""
    global unpinned
    cdef Window window = Window(payload)
    cdef const uint8_t *p = window.start
    cdef const uint8_t *end = window.end
    cdef Raw raw
    cdef int64_t i
    cdef int64_t offset
    cdef int64_t last_delta = 0
    cdef int64_t sum
    cdef bint fixed = append_time is not None
    cdef object timestamp = append_time if fixed else base_timestamp
    cdef object record
    cdef list records
    if count < 0 or count > (end - p) // MIN_RECORD_SIZE:
        return pure.decode(payload, count, base_offset, base_timestamp, append_time)
    records = PyList_New(count)
    PyObject_GC_UnTrack(<PyObject *>records)  # else it is walked for every 700 records made
    for i in range(count):
        if not parse_record(&p, end, &raw):
            break
        if not odradek_add(base_offset, raw.offset_delta, &offset):
            break
        if not fixed and raw.timestamp_delta != last_delta:
            if not odradek_add(base_timestamp, raw.timestamp_delta, &sum):
                break
            last_delta = raw.timestamp_delta
            timestamp = sum
        record = odradek_record(
            Record,
            offset,
            timestamp,
            take(raw.key, raw.key_size),
            take(raw.value, raw.value_size),
            NOTHING if raw.header_count == 0 else take_headers(&raw, end),
        )
        Py_INCREF(record)
        PyList_SET_ITEM(records, i, record)
        unpinned += OBJECTS_SIZE + (raw.value_size if 0 < raw.value_size < 512 else 0)
        if unpinned > PIN_EVERY:
            pin()
    else:
        if p == end:
            PyObject_GC_Track(<PyObject *>records)
            return records
    return pure.decode(payload, count, base_offset, base_timestamp, append_time)


def widen(type kind not None, tuple before not None, list records not None, tuple after not None):
    """See `odradek.record.pure.widen`."""
    cdef Py_ssize_t i
    cdef Py_ssize_t count = len(records)
    cdef Py_ssize_t size = len(before) + 5 + len(after)
    cdef object record
    cdef list wide
    if kind.__base__ is not tuple or kind.__dictoffset__ or len(kind._fields) != size:
        raise TypeError(f"{kind.__name__} is not a named tuple of {size} fields")
    wide = PyList_New(count)
    PyObject_GC_UnTrack(<PyObject *>wide)  # as in `decode`
    for i in range(count):
        record = records[i]
        if type(record) is not Record:
            break
        record = odradek_wide(kind, before, record, after)
        Py_INCREF(record)
        PyList_SET_ITEM(wide, i, record)
    else:
        PyObject_GC_Track(<PyObject *>wide)
        return wide
    raise TypeError("only a Record can be made wider")


def parse_records(payload, int64_t count):
    """See `odradek.record.layout.parse_records`."""
    cdef Window window = Window(payload)
    cdef const uint8_t *start = window.start
    cdef const uint8_t *p = start
    cdef const uint8_t *before
    cdef Raw raw
    cdef int64_t i = 0
    cdef object headers
    while i < count:
        before = p
        if not parse_record(&p, window.end, &raw):
            break
        headers = NOTHING if raw.header_count == 0 else take_headers(&raw, window.end)
        fields = (
            before - start,
            p - start,
            raw.timestamp_delta,
            raw.offset_delta,
            raw.key - start,
            raw.key_size,
            raw.value - start,
            raw.value_size,
            headers,
        )
        i += 1
        yield tuple.__new__(RawRecord, fields)
    if i != count or p != window.end:
        yield from islice(pure.parse_records(payload, count), i, None)


def murmur2(bytes data not None):
    """See `odradek.record.pure.murmur2`."""
    cdef Py_ssize_t length = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t left = length
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef uint32_t hashed = 0x9747B28CU ^ <uint32_t>length
    cdef uint32_t word
    while left >= 4:
        word = p[0] | p[1] << 8 | p[2] << 16 | <uint32_t>p[3] << 24
        word *= 0x5BD1E995U
        word = (word ^ word >> 24) * 0x5BD1E995U
        hashed = hashed * 0x5BD1E995U ^ word
        p += 4
        left -= 4
    if left:
        if left == 3:
            hashed ^= <uint32_t>p[2] << 16
        if left >= 2:
            hashed ^= <uint32_t>p[1] << 8
        hashed = (hashed ^ p[0]) * 0x5BD1E995U
    hashed = (hashed ^ hashed >> 13) * 0x5BD1E995U
    hashed ^= hashed >> 15
    return <int32_t>hashed
