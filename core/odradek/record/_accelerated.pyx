# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: embedsignature=True, binding=True
"""The codec compiled: `odradek.record.pure` again, with the same results, by pointers.

Two rules keep it honest. No byte is read or written without a check against the end of its buffer:
`parse_record` and `read_varint` are the only readers of payloads, `Store.reserve` goes before
every write. And whatever is wrong or unusual is handed to the pure twin, from the beginning: it
raises the error, so that damage is told in the same words.

The GIL is kept where Python objects are made: a batch takes microseconds, and most of them go into
that. Compaction makes few and lets go of it, for it works in a thread beside the event loop.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytearray cimport PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.sequence cimport PySequence_Fast, PySequence_Fast_GET_ITEM, PySequence_Fast_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove, memset

from array import array
from itertools import islice
from operator import index as as_index

from odradek.errors import KafkaError
from odradek.record import pure, pure_compacting
from odradek.record.batch import HEADER_SIZE as _HEADER_SIZE
from odradek.record.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from odradek.record.batch import BatchMeta as _BatchMeta
from odradek.record.batch import assemble
from odradek.record.builder import MAX_RECORDS as _MAX_RECORDS
from odradek.record.builder import checked, finish
from odradek.record.column import BinaryColumn, Columns, HeaderColumn
from odradek.record.compression import CompressionType, compress, compress_buffer
from odradek.record.compression import decompress, validate_level
from odradek.record.layout import RawRecord as _RawRecord
from odradek.record.layout import Record as _Record
from odradek.record.layout import encode_record
from odradek.record.windows import BREATH, Cleaned, Noted, no_breath

cdef extern from *:
    """
    #include <string.h>

    static int odradek_add(int64_t a, int64_t b, int64_t *sum) {
        if ((b > 0 && a > INT64_MAX - b) || (b < 0 && a < INT64_MIN - b)) return 0;
        *sum = a + b;
        return 1;
    }

    static int odradek_subtract(int64_t a, int64_t b, int64_t *difference) {
        if ((b < 0 && a > INT64_MAX + b) || (b > 0 && a < INT64_MIN + b)) return 0;
        *difference = a - b;
        return 1;
    }

    /* A Record. The garbage collector is not told of it: what is in it are numbers, bytes, None, and
       tuples of str and bytes, so that it is in no cycle. CPython 3.14 keeps a hash in tuples, and
       builds without the GIL more: there it is made by tuple.__new__. */
    static PyObject *odradek_record(
        PyObject *type, PyObject *a, PyObject *b, PyObject *c, PyObject *d, PyObject *e
    ) {
    #if PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
        PyObject *record = (PyObject *)PyObject_GC_NewVar(PyTupleObject, (PyTypeObject *)type, 5);
        if (record == NULL) return NULL;
        PyTuple_SET_ITEM(record, 0, Py_NewRef(a));
        PyTuple_SET_ITEM(record, 1, Py_NewRef(b));
        PyTuple_SET_ITEM(record, 2, Py_NewRef(c));
        PyTuple_SET_ITEM(record, 3, Py_NewRef(d));
        PyTuple_SET_ITEM(record, 4, Py_NewRef(e));
        return record;
    #else
        PyObject *record = NULL;
        PyObject *fields = PyTuple_Pack(5, a, b, c, d, e);
        PyObject *arguments = fields == NULL ? NULL : PyTuple_Pack(1, fields);
        if (arguments != NULL)
            record = PyTuple_Type.tp_new((PyTypeObject *)type, arguments, NULL);
        Py_XDECREF(arguments);
        Py_XDECREF(fields);
        return record;
    #endif
    }

    /* `before`, the fields of `record`, and `after` as one tuple of `type`; on the same terms. */
    static PyObject *odradek_wide(
        PyObject *type, PyObject *before, PyObject *record, PyObject *after
    ) {
        PyObject *parts[3] = {before, record, after};
        Py_ssize_t size = Py_SIZE(before) + Py_SIZE(record) + Py_SIZE(after);
        Py_ssize_t at = 0;
        PyObject *wide;
    #if PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
        wide = (PyObject *)PyObject_GC_NewVar(PyTupleObject, (PyTypeObject *)type, size);
    #else
        wide = PyTuple_New(size);
    #endif
        if (wide == NULL) return NULL;
        for (int i = 0; i < 3; i++)
            for (Py_ssize_t j = 0; j < Py_SIZE(parts[i]); j++)
                PyTuple_SET_ITEM(wide, at++, Py_NewRef(PyTuple_GET_ITEM(parts[i], j)));
    #if PY_VERSION_HEX >= 0x030E0000 || defined(Py_GIL_DISABLED)
        PyObject *arguments = PyTuple_Pack(1, wide);
        Py_DECREF(wide);
        if (arguments == NULL) return NULL;
        wide = PyTuple_Type.tp_new((PyTypeObject *)type, arguments, NULL);
        Py_DECREF(arguments);
    #endif
        return wide;
    }
    """
    bint odradek_add(int64_t a, int64_t b, int64_t *sum) noexcept nogil
    bint odradek_subtract(int64_t a, int64_t b, int64_t *difference) noexcept nogil
    object odradek_record(object type, object a, object b, object c, object d, object e)
    object odradek_wide(object type, object before, object record, object after)
    int CYTHON_HEX_VERSION
    void PyObject_GC_Track(PyObject *container)
    void PyObject_GC_UnTrack(PyObject *container)
    object PyMemoryView_FromMemory(char *data, Py_ssize_t size, int flags)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

INTERFACE = 6
COMPILER = (
    f"Cython {CYTHON_HEX_VERSION >> 24}.{CYTHON_HEX_VERSION >> 16 & 255}"
    f".{CYTHON_HEX_VERSION >> 8 & 255}"
)

cdef object Record = _Record
cdef object RawRecord = _RawRecord
cdef object BatchMeta = _BatchMeta
cdef tuple NOTHING = ()
cdef int64_t BREATH_COST = BREATH
cdef Py_ssize_t HEADER_SIZE = _HEADER_SIZE
cdef int64_t MAX_RECORDS = _MAX_RECORDS

cdef enum:
    MIN_RECORD_SIZE = 7
    OBJECTS_SIZE = 112  # a Record and its offset, as CPython allocates them
    PIN_EVERY = 262_144
    PINS = 16

# `odradek_record` and `odradek_wide` fill memory in by hand: right for such classes only.
if _Record.__base__ is not tuple or _Record.__dictoffset__ or len(_Record._fields) != 5:
    raise ImportError("Record is not the tuple that this module was compiled for")
if _BatchMeta.__base__ is not tuple or _BatchMeta.__dictoffset__ or len(_BatchMeta._fields) != 11:
    raise ImportError("BatchMeta is not the tuple that this module was compiled for")

include "_accelerated_reading.pxi"
include "_accelerated_columns.pxi"
include "_accelerated_writing.pxi"
include "_accelerated_hashing.pxi"
include "_accelerated_compacting.pxi"
include "_accelerated_output.pxi"
include "_accelerated_cleaning.pxi"
