"""What the tests of record batches share."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from tests.record.implementations import NAMES, load, new_builder

from odradek.record import CompressionType, kernel
from odradek.record.batch import ATTRIBUTES_POSITION, CRC_POSITION, HEADER, HEADER_SIZE
from odradek.record.crc import crc32c

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schemas by importlib.resources.read_text, deprecated in 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401

TIME = 1_700_000_000_000

_FIELDS = (
    "base_offset",
    "length",
    "leader_epoch",
    "magic",
    "crc",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
)


@pytest.fixture(scope="module", params=NAMES)
def implementation(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Have each implementation of the codec in force in turn."""
    module = load(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "active", module)
        yield module


@pytest.fixture
def now() -> int:
    return TIME


@pytest.fixture
def make_batch() -> Callable[..., bytearray]:
    """Build a batch of `count` records of about `size` bytes, timestamps `TIME`, `TIME + 1`..."""

    def make(
        count: int = 3,
        size: int = 20,
        compression: CompressionType = CompressionType.NONE,
        keys: Iterable[bytes | None] | None = None,
        **options: Any,
    ) -> bytearray:
        builder = new_builder(64 * 1024 * 1024, compression=compression, **options)
        names = list(keys) if keys is not None else [b"key-%d" % i for i in range(count)]
        for index, key in enumerate(names):
            assert builder.append(TIME + index, key, b"v" * size, [("h", b"%d" % index)])
        return builder.build()

    return make


@pytest.fixture
def edit() -> Callable[..., bytearray]:
    """Change fields of a batch's header; the CRC is renewed unless it is given."""

    def change(batch: bytes | bytearray, **fields: int) -> bytearray:
        values = dict(zip(_FIELDS, HEADER.unpack_from(batch), strict=True))
        assert fields.keys() <= values.keys()
        edited = bytearray(batch)
        HEADER.pack_into(edited, 0, *(values | fields).values())
        if "crc" not in fields:
            crc = crc32c(bytes(edited[ATTRIBUTES_POSITION:]))
            edited[CRC_POSITION : CRC_POSITION + 4] = crc.to_bytes(4, "big")
        assert len(edited) >= HEADER_SIZE
        return edited

    return change
