"""What the tests of faults share with those of the broker."""

from tests.broker.conftest import host, mock_time

__all__ = ["host", "mock_time"]
