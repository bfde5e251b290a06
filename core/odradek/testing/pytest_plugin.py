"""The pytest plugin `odradek`: a broker for each test, and faults on purpose.

    def test_orders_are_counted(odradek):
        odradek.create_topic("orders", partitions=3)
        run_my_program(odradek.bootstrap)
        assert len(odradek.records("orders")) == 7

Loaded by pytest in every project that has Odradek installed, so it imports nothing but pytest
until a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from odradek.testing.fixture import Odradek, Workshop

MARKER = (
    "odradek(partitions=1, auto_create_topics=True, port=0, storage=None, settings=None): "
    "how the broker of the `odradek` fixture is set up"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer `odradek_settings` and `odradek_storage` in the project's pytest configuration."""
    parser.addini(
        "odradek_settings",
        "settings of the broker of the `odradek` fixture, one section.key=value in a line",
        type="linelist",
        default=[],
    )
    parser.addini(
        "odradek_storage",
        'where the `odradek` fixture keeps records: "memory" (default), "file", or a URL',
        type="string",
        default="memory",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(scope="session")
def odradek_workshop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workshop]:
    """Where brokers are made: a thread and the plugins, once per session, so that one is quick.

    `with odradek_workshop.broker() as odradek` is for fixtures of another scope than `odradek`.
    """
    from odradek.testing.fixture import open_workshop

    config = request.config
    with open_workshop(
        new_directory=lambda: tmp_path_factory.mktemp("odradek"),
        storage=config.getini("odradek_storage"),
        settings=config.getini("odradek_settings"),
    ) as workshop:
        yield workshop


@pytest.fixture
def odradek(request: pytest.FixtureRequest, odradek_workshop: Workshop) -> Iterator[Odradek]:
    """A broker of this test alone, at `odradek.bootstrap`; `@pytest.mark.odradek(...)` sets it up.

    When the test ends it is gone with all topics and groups, and connections that the test left
    open are closed.
    """
    options: dict[str, object] = {}
    for marker in reversed(list(request.node.iter_markers("odradek"))):  # the closest one last
        if marker.args:
            raise pytest.UsageError("@pytest.mark.odradek takes keyword arguments only")
        options.update(marker.kwargs)
    try:
        opening = odradek_workshop.broker(**options)  # type: ignore[arg-type]  # checked there
    except TypeError as error:
        raise pytest.UsageError(f"@pytest.mark.odradek: {error}; it is {MARKER}") from None
    with opening as broker:
        yield broker
