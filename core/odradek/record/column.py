"""Columns of records, in the memory layout of Apache Arrow, so that pyarrow wraps without a copy.

    values = decode_columns(view).values
    buffers = [None if b is None else pyarrow.py_buffer(b) for b in values.buffers]
    pyarrow.Array.from_buffers(pyarrow.binary(), len(values), buffers, values.null_count)

(Arrow columnar format 1.0: "Variable-size Binary Layout", "Variable-size List Layout".)
"""

from __future__ import annotations

from attrs import frozen

__all__ = ["BinaryColumn", "Columns", "HeaderColumn"]


@frozen(slots=True, eq=False)
class BinaryColumn:
    """Byte strings: number `i` is `data[offsets[i] : offsets[i + 1]]`, or null.

    `offsets` are int32 and one more than the items. `validity` has a bit for each item, lowest
    bit of a byte first, clear where the item is null; None where no item is.
    """

    offsets: memoryview
    data: memoryview
    validity: memoryview | None
    null_count: int

    @property
    def buffers(self) -> tuple[memoryview | None, memoryview, memoryview]:
        """The buffers in Arrow's order: validity, offsets, data."""
        return self.validity, self.offsets, self.data

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes | None:
        if not 0 <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        if self.validity is not None and not self.validity[index >> 3] >> (index & 7) & 1:
            return None
        return bytes(self.data[self.offsets[index] : self.offsets[index + 1]])


@frozen(slots=True, eq=False)
class HeaderColumn:
    """The headers of record `i` are the items from `offsets[i]` to before `offsets[i + 1]`.

    `offsets` are int32 and one more than the records. `names` are valid UTF-8 and never null.
    """

    offsets: memoryview
    names: BinaryColumn
    values: BinaryColumn


@frozen(slots=True, eq=False)
class Columns:
    """Records by columns. `offsets` and `timestamps` are int64, timestamps in ms since 1970 or -1.

    `position` is the byte behind the last batch that was looked at. `headers` is None unless they
    were asked for.
    """

    offsets: memoryview
    timestamps: memoryview
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeaderColumn | None
    position: int

    def __len__(self) -> int:
        return len(self.offsets)
