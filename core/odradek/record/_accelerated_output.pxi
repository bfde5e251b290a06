# What compaction leaves of a window. Part of _accelerated.pyx.

cdef struct Piece:
    Py_ssize_t source  # which of the new buffers, or -1 for the window
    Py_ssize_t start
    Py_ssize_t size


cdef enum:
    KEEP_BODY = 262_144

cdef class Output:
    """Batches that stay: pieces of the window, and new ones."""

    cdef Head *heads
    cdef Py_ssize_t head_count
    cdef Py_ssize_t head_room
    cdef Piece *pieces
    cdef Py_ssize_t piece_count
    cdef Py_ssize_t piece_room
    cdef int64_t bytes
    cdef list buffers
    cdef Py_ssize_t source  # the buffer that is being filled
    cdef uint8_t *data
    cdef Py_ssize_t used
    cdef Py_ssize_t room
    cdef Py_ssize_t wanted
    cdef uint8_t *body  # of a batch to be compressed
    cdef Py_ssize_t body_room
    cdef Head body_head

    def __cinit__(self):
        self.buffers = []

    def __dealloc__(self):
        free(self.heads)
        free(self.pieces)
        free(self.body)

    cdef Step add(
        self, const Head *head, Py_ssize_t source, Py_ssize_t start, Py_ssize_t size
    ) noexcept nogil:
        """Add a batch to the result: bytes of the window (-1), or of a new buffer."""
        cdef Piece *last
        cdef void *grown
        if self.head_count == self.head_room:
            grown = realloc(self.heads, (2 * self.head_room + 64) * sizeof(Head))
            if grown == NULL:
                return NO_MEMORY
            self.heads = <Head *>grown
            self.head_room = 2 * self.head_room + 64
        if self.piece_count == self.piece_room:
            grown = realloc(self.pieces, (2 * self.piece_room + 64) * sizeof(Piece))
            if grown == NULL:
                return NO_MEMORY
            self.pieces = <Piece *>grown
            self.piece_room = 2 * self.piece_room + 64
        self.heads[self.head_count] = head[0]
        self.heads[self.head_count].size = size
        self.head_count += 1
        self.bytes += size
        if self.piece_count:
            last = &self.pieces[self.piece_count - 1]
            if last.source == source and last.start + last.size == start:
                last.size += size
                return DONE
        self.pieces[self.piece_count] = Piece(source, start, size)
        self.piece_count += 1
        return DONE

    cdef uint8_t *take(self, Py_ssize_t size) noexcept nogil:
        """Return where the body of the next batch goes, or NULL: `make_room` is needed first."""
        if size > self.room - self.used - 61:
            self.wanted = size + 61
            return NULL
        return self.data + self.used + 61

    cdef Step write(self, const Head *head, int64_t size) noexcept nogil:
        """Write the header in front of a body of `size` bytes, and add the batch."""
        cdef uint8_t *at = self.data + self.used
        cdef Py_ssize_t start = self.used
        odradek_put_big(at, head.base_offset, 8)
        odradek_put_big(at + 8, size + 61 - 12, 4)
        odradek_put_big(at + LEADER_EPOCH_AT, head.leader_epoch, 4)
        at[MAGIC_AT] = 2
        odradek_put_big(at + ATTRIBUTES_AT, head.attributes, 2)
        odradek_put_big(at + 23, head.last_offset - head.base_offset, 4)
        odradek_put_big(at + 27, head.base_timestamp, 8)
        odradek_put_big(at + 35, head.max_timestamp, 8)
        odradek_put_big(at + 43, head.producer_id, 8)
        odradek_put_big(at + 51, head.producer_epoch, 2)
        odradek_put_big(at + 53, head.base_sequence, 4)
        odradek_put_big(at + 57, head.count, 4)
        odradek_put_big(
            at + CRC_AT, odradek_crc(at + ATTRIBUTES_AT, size + 61 - ATTRIBUTES_AT, True), 4
        )
        self.used += size + 61
        return self.add(head, self.source, start, size + 61)

    cdef int make_room(self, Py_ssize_t left) except -1:
        """Begin a new buffer; what is `left` of the window fits, unless horizons make it longer."""
        cdef Py_ssize_t size = max(self.wanted, left)
        self.close()
        self.buffers.append(PyByteArray_FromStringAndSize(NULL, size))
        self.source = len(self.buffers) - 1
        self.data = <uint8_t *>PyByteArray_AS_STRING(self.buffers[self.source])
        self.used = 0
        self.room = size
        return 0

    cdef int close(self) except -1:
        """Give back what the buffer has too much."""
        if self.data != NULL:
            PyByteArray_Resize(self.buffers[self.source], self.used)
            self.data = NULL
            self.room = self.used
        return 0

    cdef uint8_t *take_body(self, const Head *head, Py_ssize_t size) noexcept nogil:
        """Return where the body of a batch to be compressed goes, or NULL for want of memory."""
        cdef void *grown
        if size > self.body_room:
            grown = realloc(self.body, size)
            if grown == NULL:
                return NULL
            self.body = <uint8_t *>grown
            self.body_room = size
        self.body_head = head[0]
        self.body_head.size = size
        return self.body

    cdef object compressed(self, const uint8_t *body):
        """Return the body compressed."""
        codec = CompressionType(self.body_head.attributes & COMPRESSED)
        return compress_buffer(
            codec, PyMemoryView_FromMemory(<char *>body, self.body_head.size, PyBUF_READ)
        )

    cdef int pack(self, payload) except -1:
        """Add the batch around its body, which is compressed now."""
        cdef object batch = assemble(make_meta(&self.body_head), payload)
        self.buffers.append(batch)
        if self.add(&self.body_head, len(self.buffers) - 1, 0, len(batch)) != DONE:
            raise MemoryError
        return 0

    cdef int drop_body(self) except -1:
        """Give back the room of a body, unless it is little."""
        if self.body_room > KEEP_BODY:
            free(self.body)
            self.body = NULL
            self.body_room = 0
        return 0

    cdef list metas(self, Breath breath):
        cdef Py_ssize_t i
        cdef object meta
        cdef list metas = []
        for i in range(self.head_count):
            meta = make_meta(&self.heads[i])
            metas.append(meta)
            if i & 63 == 63:
                breath.count(1)
        return metas

    cdef list slices(self, view, Breath breath):
        cdef Py_ssize_t i
        cdef Piece *piece
        cdef list slices = []
        self.close()
        for i in range(self.piece_count):
            piece = &self.pieces[i]
            source = view if piece.source < 0 else memoryview(self.buffers[piece.source])
            slices.append(source[piece.start : piece.start + piece.size])
            if i & 63 == 63:
                breath.count(1)
        return slices


cdef inline object make_meta(const Head *head):
    fields = (
        head.base_offset,
        head.last_offset,
        head.size,
        head.leader_epoch,
        head.attributes,
        head.base_timestamp,
        head.max_timestamp,
        head.producer_id,
        head.producer_epoch,
        head.base_sequence,
        head.count,
    )
    return odradek_wide(BatchMeta, fields, NOTHING, NOTHING)
