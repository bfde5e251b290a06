"""The pytest plugin in projects of its users."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytest_plugins = ["pytester"]

tcp = pytest.mark.skipif(
    find_spec("odradek_transport_tcp") is None, reason="the tcp transport is not installed"
)

QUIET = "-p", "no:anyio", "-p", "no:hypothesispytest"
"""The plugin needs no anyio, and hypothesis takes a second to import in each of these tests."""


def test_plugin_imports_nothing_until_the_fixture_is_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_unused():
            assert "odradek.testing.pytest_plugin" in sys.modules
            loaded = {name for name in sys.modules if name.partition(".")[0] in ("odradek", "trio")}
            assert loaded == {"odradek", "odradek.testing", "odradek.testing.pytest_plugin"}
        """
    )
    result = pytester.runpytest_subprocess(*QUIET, "-W", "error")
    result.assert_outcomes(passed=1)


def test_fixtures_marker_and_options_are_shown(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(*QUIET, "--fixtures", "--help")
    result.stdout.fnmatch_lines(["*odradek_settings*", "*odradek_storage*"])
    result = pytester.runpytest_inprocess(*QUIET, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.odradek(partitions=1,*"])
    result = pytester.runpytest_inprocess(*QUIET, "--fixtures")
    result.stdout.fnmatch_lines(["odradek *pytest_plugin.py*", "*A broker of this test alone*"])


@tcp
def test_project_configures_the_brokers(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        """
        [pytest]
        odradek_settings =
            broker.id = 3
            topics.retention.ms = 77
            groups.max_size = 5
        """
    )
    pytester.makepyfile(
        """
        import pytest

        def test_of_the_project(odradek):
            config = odradek.broker.config
            assert (config.broker.id, config.groups.max_size) == (3, 5)
            assert config.topics.retention_ms == 77

        @pytest.mark.odradek(settings={"broker.id": 4})
        def test_of_the_test(odradek):
            assert odradek.broker.config.broker.id == 4
        """
    )
    result = pytester.runpytest_inprocess(*QUIET, "--strict-markers", "-W", "error")
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("odradek(3)", "*keyword arguments only*"),
        ("odradek(partition=3)", "*unexpected keyword argument 'partition'*"),
        ("odradek(settings={'broker.ib': 1})", "*broker*ib*id*"),
        ("odradek(storage='nowhere:')", "*no plugin serves nowhere*"),
    ],
)
def test_mistakes_in_the_marker_are_named(
    pytester: pytest.Pytester, marker: str, message: str
) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.{marker}
        def test_it(odradek):
            pass
        """
    )
    result = pytester.runpytest_inprocess(*QUIET)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])


@tcp
@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_async_tests_of_any_library_use_the_fixture(
    pytester: pytest.Pytester, library: str
) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.fixture
        def anyio_backend():
            return "{library}"

        @pytest.mark.anyio
        async def test_it(odradek):
            import anyio
            host, _, port = odradek.bootstrap.partition(":")
            async with await anyio.connect_tcp(host, int(port)):
                odradek.produce("t", ["x"])
                assert len(odradek.records("t")) == 1
        """
    )
    pytester.runpytest_inprocess(*QUIET[2:], "-W", "error").assert_outcomes(passed=1)


@tcp
@pytest.mark.skipif(find_spec("xdist") is None, reason="pytest-xdist is not installed")
def test_workers_of_xdist_have_brokers_of_their_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(20))
        def test_it(odradek, number):
            assert odradek.topics() == {}
            odradek.create_topic("same-name")
        """
    )
    pytester.runpytest_subprocess(*QUIET, "-n", "2").assert_outcomes(passed=20)


@tcp
def test_connections_that_a_test_leaves_open_are_closed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import socket

        left = []

        def test_leaves(odradek):
            host, _, port = odradek.bootstrap.partition(":")
            left.append((socket.create_connection((host, int(port))), odradek.bootstrap))

        def test_after(odradek):
            (connection, address), = left
            assert connection.recv(1) == b""
            connection.close()
            assert odradek.bootstrap != address
        """
    )
    pytester.runpytest_inprocess(*QUIET, "-W", "error").assert_outcomes(passed=2)
