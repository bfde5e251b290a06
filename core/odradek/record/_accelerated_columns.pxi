# Payloads into columns. Part of _accelerated.pyx.

cdef class Store:
    """Bytes that grow: a bytearray with room to spare."""

    cdef bytearray content
    cdef uint8_t *data
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity

    def __cinit__(self):
        self.content = bytearray()

    cdef inline int reserve(self, Py_ssize_t more) except -1:
        """Make room for `more` bytes behind the used ones, with no say what is in them."""
        if more > self.capacity - self.used:
            self.grow(self.used + more, 2 * self.capacity)
        return 0

    cdef int grow(self, Py_ssize_t least, Py_ssize_t wish) except -1:
        cdef Py_ssize_t capacity = max(least, wish, 64)
        PyByteArray_Resize(self.content, capacity)
        self.data = <uint8_t *>PyByteArray_AS_STRING(self.content)
        self.capacity = capacity
        return 0

    cdef inline int add_int32(self, Py_ssize_t number) except -1:
        if number > INT32_MAX:
            raise OverflowError("a column holds less than 2 GiB")
        self.reserve(sizeof(int32_t))
        (<int32_t *>(self.data + self.used))[0] = <int32_t>number
        self.used += sizeof(int32_t)
        return 0

    cdef inline int add_int64(self, int64_t number) except -1:
        self.reserve(sizeof(int64_t))
        (<int64_t *>(self.data + self.used))[0] = number
        self.used += sizeof(int64_t)
        return 0

    cdef inline int add_bytes(self, const void *data, Py_ssize_t size) except -1:
        if size:
            self.reserve(size)
            memcpy(self.data + self.used, data, size)
            self.used += size
        return 0

    cdef object finish(self, str form):
        """Give the content away, cut to what is used."""
        content = self.content
        if self.used == 0:
            return memoryview(array(form))  # an empty view cannot be cast
        self.content = bytearray()
        PyByteArray_Resize(content, self.used)
        self.data = NULL
        self.used = self.capacity = 0
        return memoryview(content).cast(form)


cdef class Column:
    """A BinaryColumn in the making."""

    cdef Store offsets
    cdef Store data
    cdef Store validity
    cdef Py_ssize_t count
    cdef Py_ssize_t nulls

    def __cinit__(self):
        self.offsets = Store()
        self.data = Store()
        self.validity = Store()
        self.offsets.add_int32(0)

    cdef inline int add(self, const uint8_t *field, int64_t size) except -1:
        if size < 0:
            if self.nulls == 0:
                self.begin_validity()
            self.nulls += 1
        else:
            self.data.add_bytes(field, size)
        if self.nulls:
            self.mark(size >= 0)
        self.count += 1
        return self.offsets.add_int32(self.data.used)

    cdef int begin_validity(self) except -1:
        """Write the bits of the items so far, none of which is null."""
        cdef Py_ssize_t whole = self.count // 8
        self.validity.reserve(whole + 1)
        memset(self.validity.data, 255, whole)
        self.validity.used = whole
        if self.count % 8:
            self.validity.data[whole] = (1 << self.count % 8) - 1
            self.validity.used += 1
        return 0

    cdef inline int mark(self, bint valid) except -1:
        if self.count % 8 == 0:
            self.validity.reserve(1)
            self.validity.data[self.validity.used] = 0
            self.validity.used += 1
        self.validity.data[self.count // 8] |= valid << self.count % 8
        return 0

    cdef object finish(self):
        return BinaryColumn(
            self.offsets.finish("i"),
            self.data.finish("B"),
            self.validity.finish("B") if self.nulls else None,
            self.nulls,
        )


cdef class ColumnCollector:
    """See `odradek.record.pure.ColumnCollector`."""

    cdef Store offsets
    cdef Store timestamps
    cdef Column keys
    cdef Column values
    cdef Store header_offsets
    cdef Column header_names
    cdef Column header_values
    cdef bint headers
    cdef bint used_up

    def __cinit__(self, bint headers):
        self.headers = headers
        self.used_up = False
        self.offsets = Store()
        self.timestamps = Store()
        self.keys = Column()
        self.values = Column()
        self.header_offsets = Store()
        self.header_names = Column()
        self.header_values = Column()
        self.header_offsets.add_int32(0)

    def add(
        self,
        payload,
        int64_t count,
        int64_t base_offset,
        int64_t base_timestamp,
        append_time,
        int64_t start,
        int64_t end,
    ):
        """See `odradek.record.pure.ColumnCollector.add`."""
        cdef Window window = Window(payload)
        cdef const uint8_t *p = window.start
        cdef bint cut = start > INT64_MIN or end < INT64_MAX
        cdef bint fixed = append_time is not None
        cdef int64_t timestamp = append_time if fixed else 0
        cdef int64_t offset
        cdef int64_t i
        cdef Raw raw
        self.check()
        if 0 <= count <= (window.end - p) // MIN_RECORD_SIZE:
            self.values.data.reserve(window.end - p)
            for i in range(count):
                if not parse_record(&p, window.end, &raw):
                    break
                if not odradek_add(base_offset, raw.offset_delta, &offset):
                    break
                if not fixed and not odradek_add(base_timestamp, raw.timestamp_delta, &timestamp):
                    break
                if not cut or start <= offset < end:
                    self.offsets.add_int64(offset)
                    self.timestamps.add_int64(timestamp)
                    self.keys.add(raw.key, raw.key_size)
                    self.values.add(raw.value, raw.value_size)
                    if self.headers:
                        self.add_headers(&raw, window.end)
            else:
                if p == window.end:
                    return
        pure.decode(payload, count, base_offset, base_timestamp, append_time)
        raise AssertionError("the compiled codec refuses a payload that pure Python reads")

    cdef int check(self) except -1:
        if self.used_up:
            raise ValueError("the collector is used up")
        return 0

    cdef int add_headers(self, const Raw *raw, const uint8_t *end) except -1:
        cdef const uint8_t *p = raw.headers
        cdef const uint8_t *field = NULL
        cdef const char *text
        cdef Py_ssize_t length
        cdef int64_t size = 0
        cdef int64_t i
        cdef int64_t j
        cdef uint8_t bits
        for i in range(raw.header_count):
            if not read_field(&p, end, &field, &size) or size < 0:
                changed()
            bits = 0
            for j in range(size):
                bits |= field[j]
            if bits < 128:
                self.header_names.add(field, size)
            else:
                name = PyUnicode_DecodeUTF8(<const char *>field, size, "replace")
                text = PyUnicode_AsUTF8AndSize(name, &length)
                self.header_names.add(<const uint8_t *>text, length)
            if not read_field(&p, end, &field, &size):
                changed()
            self.header_values.add(field, size)
        return self.header_offsets.add_int32(self.header_names.count)

    def finish(self, position):
        """See `odradek.record.pure.ColumnCollector.finish`."""
        self.check()
        self.used_up = True
        headers = None
        if self.headers:
            headers = HeaderColumn(
                self.header_offsets.finish("i"),
                self.header_names.finish(),
                self.header_values.finish(),
            )
        return Columns(
            self.offsets.finish("q"),
            self.timestamps.finish("q"),
            self.keys.finish(),
            self.values.finish(),
            headers,
            position,
        )
