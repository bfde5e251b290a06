"""The reference of the transport contract lists all of its promises and errors."""

import re
from pathlib import Path

from odradek.contracts import transport as contract

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "transport.md").read_text("utf-8")


def test_the_reference_lists_every_promise() -> None:
    promises = re.findall(r"^\* \*\*(T\d+)\*\*", contract.__doc__ or "", re.MULTILINE)
    assert promises
    assert re.findall(r"^\| (T\d+) \|", PAGE, re.MULTILINE) == promises


def test_the_reference_lists_every_error() -> None:
    errors = {
        name
        for name in contract.__all__
        if isinstance(found := getattr(contract, name), type)
        and issubclass(found, contract.TransportError)
        and found is not contract.TransportError
    }
    listed = PAGE.partition("## Errors")[2].partition("##")[0]
    assert set(re.findall(r"^\| ([A-Z]\w+) \|", listed, re.MULTILINE)) == errors
