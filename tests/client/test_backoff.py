"""Waits double up to a bound, with jitter, and begin anew after a success."""

from random import Random

from odradek.client.backoff import Backoff


def test_backoff_doubles_up_to_its_largest_wait_give_or_take_a_fifth() -> None:
    backoff = Backoff(0.1, 1.0, Random(1))
    for expected in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert 0.8 * expected <= backoff.next() <= 1.2 * expected
    assert backoff.failures == 6


def test_backoff_begins_anew_after_reset() -> None:
    backoff = Backoff(0.1, 1.0, Random(1))
    for _ in range(5):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 0.12


def test_backoff_survives_any_number_of_failures() -> None:
    backoff = Backoff(0.1, 1.0, Random(1))
    assert all(backoff.next() <= 1.2 for _ in range(5000))
