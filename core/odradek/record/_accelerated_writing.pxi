# Records into batches. Part of _accelerated.pyx.

cdef inline Py_ssize_t varint_size(int64_t value) noexcept nogil:
    cdef uint64_t zigzag = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef Py_ssize_t size = 1
    while zigzag > 127:
        zigzag >>= 7
        size += 1
    return size


cdef inline uint8_t *write_varint(uint8_t *at, int64_t value) noexcept nogil:
    """Write as many bytes as `varint_size` says, and return the place behind them."""
    cdef uint64_t zigzag = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    while zigzag > 127:
        at[0] = <uint8_t>(zigzag & 127 | 128)
        zigzag >>= 7
        at += 1
    at[0] = <uint8_t>zigzag
    return at + 1


cdef inline uint8_t *write_field(uint8_t *at, const char *data, Py_ssize_t size) noexcept nogil:
    at = write_varint(at, size)
    if size > 0:
        memcpy(at, data, size)
        at += size
    return at


cdef Py_ssize_t headers_size(object headers) except -2:
    """Return the bytes that headers take, behind their count; -1 where Python must be asked."""
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t length
    cdef Py_ssize_t i
    if type(headers) is not list and type(headers) is not tuple:
        return -1
    for i in range(PySequence_Fast_GET_SIZE(headers)):
        pair = <object>PySequence_Fast_GET_ITEM(headers, i)
        if type(pair) is not tuple or PyTuple_GET_SIZE(pair) != 2:
            return -1
        name = <object>PyTuple_GET_ITEM(pair, 0)
        content = <object>PyTuple_GET_ITEM(pair, 1)
        if type(name) is not str or not is_plain(content):
            return -1
        PyUnicode_AsUTF8AndSize(name, &length)
        size += varint_size(length) + length
        length = -1 if content is None else PyBytes_GET_SIZE(content)
        size += varint_size(length) + max(length, 0)
    return size


cdef uint8_t *write_headers(uint8_t *at, object headers) except NULL:
    """Write headers that `headers_size` measured, and return the place behind them."""
    cdef const char *text
    cdef Py_ssize_t length
    cdef Py_ssize_t i
    for i in range(PySequence_Fast_GET_SIZE(headers)):
        pair = <object>PySequence_Fast_GET_ITEM(headers, i)
        text = PyUnicode_AsUTF8AndSize(<object>PyTuple_GET_ITEM(pair, 0), &length)
        at = write_field(at, text, length)
        content = <object>PyTuple_GET_ITEM(pair, 1)
        if content is None:
            at = write_field(at, NULL, -1)
        else:
            at = write_field(at, PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content))
    return at


cdef inline bint is_plain(object field):
    """Whether a key or value is one whose bytes can be had without asking Python."""
    return field is None or type(field) is bytes


cdef inline object whole(object number):
    """Return a whole number; converted to a C integer as it is, a fraction would be cut off."""
    return number if type(number) is int else as_index(number)


cdef class BatchBuilder:
    """See `odradek.record.builder.BatchBuilder`."""

    cdef public Py_ssize_t max_bytes
    cdef public object compression
    cdef public object level
    cdef public object producer_id
    cdef public object producer_epoch
    cdef public object base_sequence
    cdef public object transactional
    cdef public object control
    cdef Store batch
    cdef bint given_away
    cdef int64_t count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp

    def __cinit__(self, *_, **__):
        self.batch = Store()
        self.batch.reserve(HEADER_SIZE)
        memset(self.batch.data, 0, HEADER_SIZE)
        self.batch.used = HEADER_SIZE
        self.given_away = False
        self.count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1

    def __init__(
        self,
        Py_ssize_t max_bytes,
        *,
        compression=CompressionType.NONE,
        level=None,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        transactional=False,
        control=False,
    ):
        validate_level(compression, level)
        self.max_bytes = max_bytes
        self.compression = compression
        self.level = level
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.transactional = transactional
        self.control = control

    def __len__(self):
        return self.count

    @property
    def size(self):
        """See `odradek.record.builder.BatchBuilder.size`."""
        return self.batch.used

    def append(self, timestamp, key, value, headers=NOTHING):
        """See `odradek.record.builder.BatchBuilder.append`."""
        cdef int64_t time = whole(timestamp)
        return self.add(time, self.timestamp_delta(time), key, value, headers)

    def extend(self, timestamp, values, keys=None, Py_ssize_t start=0):
        """See `odradek.record.builder.BatchBuilder.extend`."""
        cdef int64_t time = whole(timestamp)
        cdef object all_values = PySequence_Fast(values, "values are a sequence")
        cdef object all_keys = None
        cdef Py_ssize_t size = PySequence_Fast_GET_SIZE(all_values)
        cdef Py_ssize_t i
        cdef int64_t delta = self.timestamp_delta(time)
        cdef int64_t count = self.count
        cdef int64_t base_timestamp = self.base_timestamp
        cdef int64_t max_timestamp = self.max_timestamp
        cdef Py_ssize_t used = self.batch.used
        if keys is not None:
            all_keys = PySequence_Fast(keys, "keys are a sequence")
        if start < 0 or (all_keys is not None and PySequence_Fast_GET_SIZE(all_keys) != size):
            raise ValueError("as many keys as values are needed, and a start that is not negative")
        try:
            for i in range(start, size):
                if not self.add(
                    time,
                    delta,
                    None if all_keys is None else item(all_keys, i),
                    item(all_values, i),
                    NOTHING,
                ):
                    break
        except BaseException:
            self.count = count
            self.base_timestamp = base_timestamp
            self.max_timestamp = max_timestamp
            self.batch.used = used
            raise
        return self.count - count

    def build(self):
        """See `odradek.record.builder.BatchBuilder.build`."""
        if self.count == 0:
            raise ValueError("a batch holds at least one record")
        self.own()
        PyByteArray_Resize(self.batch.content, self.batch.used)
        self.batch.data = <uint8_t *>PyByteArray_AS_STRING(self.batch.content)
        self.batch.capacity = self.batch.used
        batch = finish(self, self.batch.content)
        self.given_away = batch is self.batch.content
        return batch

    cdef int64_t timestamp_delta(self, int64_t timestamp) except? -1:
        cdef int64_t delta = 0
        if self.count and not odradek_subtract(timestamp, self.base_timestamp, &delta):
            raise OverflowError(f"the timestamp {timestamp} does not fit into 64 bits")
        return delta

    cdef bint add(
        self, int64_t timestamp, int64_t delta, object key, object value, object headers
    ) except -1:
        cdef const char *key_data = NULL
        cdef const char *value_data = NULL
        cdef Py_ssize_t key_size = -1
        cdef Py_ssize_t value_size = -1
        cdef Py_ssize_t header_count = 0
        cdef Py_ssize_t header_bytes = 0
        cdef Py_ssize_t size = 1
        cdef Py_ssize_t whole
        cdef uint8_t *at
        if headers is not NOTHING:
            header_bytes = headers_size(headers)
            header_count = 0 if header_bytes < 0 else PySequence_Fast_GET_SIZE(headers)
        if header_bytes < 0 or not is_plain(key) or not is_plain(value):
            encoded = encode_record(self.count, delta, key, value, checked(key, value, headers))
            return self.add_encoded(timestamp, encoded)
        if key is not None:
            key_size = PyBytes_GET_SIZE(key)
            key_data = PyBytes_AS_STRING(key)
            size += key_size
        if value is not None:
            value_size = PyBytes_GET_SIZE(value)
            value_data = PyBytes_AS_STRING(value)
            size += value_size
        size += (
            varint_size(delta)
            + varint_size(self.count)
            + varint_size(key_size)
            + varint_size(value_size)
            + varint_size(header_count)
            + header_bytes
        )
        whole = varint_size(size) + size
        if whole > self.max_bytes - self.batch.used or self.count == MAX_RECORDS:
            return False
        self.make_room(whole)
        at = self.batch.data + self.batch.used
        at = write_varint(at, size)
        at[0] = 0
        at = write_varint(at + 1, delta)
        at = write_varint(at, self.count)
        at = write_field(at, key_data, key_size)
        at = write_field(at, value_data, value_size)
        at = write_varint(at, header_count)
        if header_count:
            write_headers(at, headers)
        self.added(timestamp, whole)
        return True

    cdef bint add_encoded(self, int64_t timestamp, bytes encoded) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(encoded)
        if size > self.max_bytes - self.batch.used or self.count == MAX_RECORDS:
            return False
        self.make_room(size)
        memcpy(self.batch.data + self.batch.used, PyBytes_AS_STRING(encoded), size)
        self.added(timestamp, size)
        return True

    cdef inline void added(self, int64_t timestamp, Py_ssize_t size) noexcept:
        if self.count == 0:
            self.base_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.batch.used += size
        self.count += 1

    cdef inline int make_room(self, Py_ssize_t size) except -1:
        """Own the buffer, with room for `size` bytes more; never far above what max_bytes allow."""
        if self.given_away:
            self.own()
        if size > self.batch.capacity - self.batch.used:
            self.batch.grow(self.batch.used + size, min(2 * self.batch.capacity, self.max_bytes))
        return 0

    cdef int own(self) except -1:
        """Go on with a copy of a buffer that the caller of `build` has."""
        if self.given_away:
            if PyByteArray_GET_SIZE(self.batch.content) != self.batch.used:
                raise BufferError("the size of the batch was changed since it was built")
            self.batch.content = self.batch.content[:]
            self.batch.data = <uint8_t *>PyByteArray_AS_STRING(self.batch.content)
            self.batch.capacity = self.batch.used
            self.given_away = False
        return 0


cdef inline object item(object sequence, Py_ssize_t index):
    if index >= PySequence_Fast_GET_SIZE(sequence):  # encoding an odd value may run anything
        raise RuntimeError("the sequence became shorter while it was read")
    return <object>PySequence_Fast_GET_ITEM(sequence, index)
