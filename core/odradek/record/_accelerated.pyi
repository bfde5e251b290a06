"""Types of the compiled module: those of `odradek.record.pure`, its twin."""

from odradek.record.pure import BatchBuilder as BatchBuilder
from odradek.record.pure import ColumnCollector as ColumnCollector
from odradek.record.pure import OffsetMap as OffsetMap
from odradek.record.pure import clean_window as clean_window
from odradek.record.pure import decode as decode
from odradek.record.pure import murmur2 as murmur2
from odradek.record.pure import note_window as note_window
from odradek.record.pure import parse_records as parse_records
from odradek.record.pure import widen as widen

INTERFACE: int
COMPILER: str
