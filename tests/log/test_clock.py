"""The clock that retention goes by: what it believes of a wall clock that jumps."""

from __future__ import annotations

import json

import pytest
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st

from odradek.log.clock import BELIEVED_MS, PLAUSIBLE_MS, RetentionClock, Spell, written_ms
from odradek.log.deadlines import Step, counts_from

NOW = 1_700_000_000_000
SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
YEAR = 365 * DAY


@define
class Machine:
    """A machine that is up: the true time passes, the wall clock is off by `error`."""

    clock: RetentionClock = field(factory=lambda: RetentionClock(NOW, "boot", 0))
    true: int = NOW
    up: int = 0
    boot: str = "boot"
    error: int = 0

    @property
    def wall(self) -> int:
        return self.true + self.error

    @property
    def now(self) -> int:
        return self.clock.now(self.wall)

    def look(self) -> int:
        self.clock = self.clock.advanced(self.wall, self.boot, self.up)
        return self.now

    def wait(self, ms: int, step: int = 5 * MINUTE) -> int:
        """Let time pass, looking at the clock from time to time."""
        while ms > 0:
            passed = min(ms, step)
            self.true += passed
            self.up += passed
            ms -= passed
            self.look()
        return self.now

    def reboot(self, off: int) -> None:
        self.true += off
        self.up = 30 * SECOND
        self.boot += "'"
        self.look()


def test_time_goes_by_as_on_the_wall() -> None:
    machine = Machine()
    for _ in range(100):
        machine.wait(7 * MINUTE)
        assert machine.now == machine.true


@pytest.mark.parametrize("jump", [HOUR, DAY, YEAR])
def test_jump_ahead_is_followed_at_twice_real_time(jump: int) -> None:
    machine = Machine()
    machine.error = jump
    assert machine.look() == machine.true, "a jump alone changes nothing"
    for _ in range(10):
        machine.wait(2 * MINUTE)
        assert machine.now == NOW + 2 * (machine.true - NOW)
    machine.wait(jump - (machine.true - NOW) - 1)
    assert machine.now == machine.wall - 1
    machine.wait(MINUTE)
    assert machine.now == machine.wall


@pytest.mark.parametrize("jump", [HOUR, YEAR])
def test_jump_ahead_that_is_put_right_leaves_nothing_behind(jump: int) -> None:
    machine = Machine()
    machine.error = jump
    machine.wait(10 * MINUTE)
    machine.error = 0
    assert machine.look() == machine.true
    machine.wait(20 * MINUTE)
    machine.error = jump
    assert machine.look() == machine.true


def test_jump_ahead_that_was_believed_can_be_put_right_too() -> None:
    """What is written until the clock is believed, or time has caught up, is only kept longer."""
    machine = Machine()
    machine.error = HOUR
    machine.wait(2 * HOUR)
    assert machine.now == machine.wall
    machine.error = 0
    assert machine.look() == machine.true
    machine.wait(DAY + 5 * MINUTE)
    assert machine.clock.proven_ms == machine.true


@pytest.mark.parametrize("jump", [HOUR, YEAR])
def test_jump_back_is_followed_at_once_and_so_is_the_way_home(jump: int) -> None:
    machine = Machine()
    machine.error = -jump
    assert machine.look() == machine.wall
    machine.wait(3 * HOUR)
    assert machine.now == machine.wall
    machine.error = 0
    assert machine.look() == machine.true


@pytest.mark.parametrize("jump", [HOUR, YEAR])
def test_what_is_written_while_the_clock_is_back_is_known(jump: int) -> None:
    machine = Machine()
    machine.wait(2 * HOUR)
    before = machine.wall
    machine.true += 100
    machine.up += 100
    machine.error = -jump
    written = [(machine.wall, machine.true)]
    for _ in range(7):
        machine.wait(11 * MINUTE)
        written.append((machine.wall, machine.true))
    machine.error = 0
    machine.wait(5 * MINUTE)
    for stamp, true in written:
        believed = written_ms(stamp, machine.clock.spells)
        assert true <= believed <= machine.true, "it would be deleted too early"
    assert written_ms(before, machine.clock.spells) <= machine.true
    assert written_ms(machine.wall, machine.clock.spells) == machine.wall


def test_clock_that_stays_back_is_believed_after_a_day() -> None:
    """It was the wrong one before: what it says now must not stay unknown for years."""
    machine = Machine()
    machine.error = -YEAR
    machine.look()
    assert machine.clock.proven_ms == NOW
    machine.wait(BELIEVED_MS)
    assert machine.clock.proven_ms == machine.true
    machine.wait(5 * MINUTE)
    assert machine.clock.proven_ms == machine.wall
    assert machine.clock.spells == ()
    machine.error = 0
    before = machine.true - YEAR
    assert machine.look() == before, "the way back is a jump ahead now"


def test_small_steps_back_are_no_spell() -> None:
    machine = Machine()
    for _ in range(100):
        machine.error -= 500
        machine.wait(5 * MINUTE)
        assert machine.clock.spells == ()
        assert machine.clock.proven_ms == machine.now == machine.wall


def test_uptime_proves_time_over_restarts_of_the_process() -> None:
    machine = Machine()
    machine.look()
    stored = machine.clock.dump()
    machine.true += 3 * DAY
    machine.up += 3 * DAY
    machine.clock = RetentionClock.load(stored)
    assert machine.look() == machine.true


@pytest.mark.parametrize("off", [MINUTE, 30 * DAY])
def test_time_in_which_the_machine_was_off_is_caught_up_with(off: int) -> None:
    machine = Machine()
    machine.wait(HOUR)
    before = machine.now
    machine.reboot(off)
    assert machine.now == before, "it may as well be a clock that was set wrong"
    machine.wait(off)
    assert machine.now == machine.true


def test_machine_without_a_battery_begins_in_1970_and_recovers() -> None:
    machine = Machine()
    machine.wait(HOUR)
    machine.reboot(MINUTE)
    machine.error = -machine.true
    assert machine.look() == 0
    machine.wait(5 * MINUTE)
    machine.error = 0
    machine.look()
    machine.wait(2 * MINUTE)
    assert machine.now == machine.true


def first_started_in_1970() -> Machine:
    """No battery, and no network yet: the first start of all."""
    return Machine(clock=RetentionClock(MINUTE, "boot", 0), error=MINUTE - NOW)


@pytest.mark.parametrize("waited", [0, 3 * MINUTE, 3 * DAY])
def test_first_start_in_1970_goes_by_the_time_once_it_is_known(waited: int) -> None:
    machine = first_started_in_1970()
    machine.wait(waited)
    assert machine.now < DAY * 4, "nothing is old"
    machine.error = 0
    assert machine.look() == machine.true
    assert machine.wait(HOUR) == machine.true


@pytest.mark.parametrize("wrong", [0, YEAR, -YEAR // 2])
def test_what_was_written_before_the_time_was_known_is_young(wrong: int) -> None:
    """By this machine, in 1970, or by one whose clock is right; should the first time be wrong."""
    machine = first_started_in_1970()
    stamps = []
    for _ in range(10):
        machine.wait(7 * MINUTE)
        stamps += [machine.wall, machine.true]
    machine.error = wrong
    machine.look()
    for stamp in stamps:
        assert machine.now - written_ms(stamp, machine.clock.spells) <= 0
    machine.wait(HOUR)
    for stamp in stamps:
        age = machine.now - written_ms(stamp, machine.clock.spells)
        assert age <= HOUR, "it would be deleted too early"
    assert machine.now - written_ms(0, machine.clock.spells) == HOUR, "and is not kept for ever"


def test_clock_that_was_begun_in_1970_by_an_older_release_recovers() -> None:
    machine = first_started_in_1970()
    machine.clock = RetentionClock.load(
        b'{"format":1,"boot_id":"b","proven_ms":99,"boot_ms":1,"back_ms":-1,"lead_ms":0,"spells":[]}'
    )
    machine.error = 0
    assert machine.look() == machine.true


def test_time_that_cannot_be_right_is_not_believed_after_a_day_either() -> None:
    """It would take half a century to get out of it."""
    machine = Machine()
    machine.wait(HOUR)
    machine.reboot(0)
    machine.error = -machine.true
    machine.wait(3 * DAY)
    assert machine.clock.proven_ms == machine.true
    machine.error = 0
    assert machine.look() == machine.true


def test_deadlines_get_no_older_when_the_time_becomes_known() -> None:
    machine = first_started_in_1970()
    machine.wait(HOUR)
    stamp = machine.clock.proven_ms
    machine.wait(HOUR)
    machine.error = 0
    machine.look()
    assert machine.clock.proven_ms - counts_from(stamp, machine.clock.steps) == HOUR


@pytest.mark.parametrize("error", [MINUTE - 1, HOUR, YEAR, -HOUR, -YEAR // 2])
def test_whoever_vouches_for_the_clock_makes_no_deadline_older(error: int) -> None:
    machine = Machine()
    stamp = machine.clock.proven_ms
    machine.wait(2 * HOUR)
    machine.error = error
    machine.clock = machine.clock.trusted(machine.wall, machine.boot, machine.up)
    assert machine.clock.proven_ms == machine.now == machine.wall
    later = machine.clock.proven_ms
    machine.wait(HOUR)
    age = machine.clock.proven_ms - counts_from(stamp, machine.clock.steps)
    assert age <= 3 * HOUR + MINUTE
    assert machine.clock.proven_ms - counts_from(later, machine.clock.steps) == HOUR


def test_clock_that_is_set_ahead_and_back_again_leaves_deadlines_as_they_were() -> None:
    machine = Machine()
    stamp = machine.clock.proven_ms
    for _ in range(3):
        for machine.error in (YEAR, 0):
            machine.wait(0)
            machine.true += HOUR
            machine.up += HOUR
            machine.clock = machine.clock.trusted(machine.wall, machine.boot, machine.up)
    assert machine.clock.proven_ms == machine.true
    assert counts_from(stamp, machine.clock.steps) == stamp


def test_nobody_can_vouch_for_1970() -> None:
    machine = Machine()
    machine.wait(HOUR)
    machine.clock = machine.clock.trusted(MINUTE, machine.boot, machine.up)
    assert machine.clock.proven_ms == machine.true
    assert not machine.clock.unset
    assert MINUTE < PLAUSIBLE_MS


def test_what_was_written_while_the_clock_was_back_stays_young_when_it_is_vouched_for() -> None:
    machine = Machine()
    machine.wait(2 * HOUR)
    machine.error = -YEAR // 2
    machine.wait(HOUR)
    stamp, true = machine.wall, machine.true
    machine.error = 0
    machine.clock = machine.clock.trusted(machine.wall, machine.boot, machine.up)
    assert true <= written_ms(stamp, machine.clock.spells) <= machine.true


def test_uptime_that_is_not_named_proves_nothing() -> None:
    machine = Machine()
    machine.boot = ""
    machine.clock = RetentionClock(NOW, "", 0)
    machine.wait(HOUR)
    assert machine.now == NOW


def test_uptime_that_goes_back_proves_nothing() -> None:
    """A virtual machine that was set back to a saved image is still under the same boot id."""
    clock = RetentionClock(NOW, "boot", HOUR)
    assert clock.advanced(NOW + YEAR, "boot", MINUTE).proven_ms == NOW


@define
class Wait:
    wait: int
    error: int | None


steps = st.builds(
    Wait,
    st.sampled_from([0, 1, SECOND, MINUTE, HOUR, 7 * HOUR]),
    st.one_of(
        st.none(),
        st.sampled_from([0, SECOND, -SECOND, HOUR, -HOUR, YEAR, -YEAR, 5 * YEAR, -50 * YEAR]),
    ),
)


@given(st.lists(steps, max_size=60))
def test_time_never_outruns_the_wall_or_twice_real_time(history: list[Wait]) -> None:
    machine = Machine()
    for step in history:
        proven = machine.clock.proven_ms
        machine.error = machine.error if step.error is None else step.error
        machine.true += step.wait
        machine.up += step.wait
        machine.look()
        assert machine.now <= machine.wall
        assert machine.clock.proven_ms <= proven + 2 * step.wait
        assert len(machine.clock.spells) <= 16
        assert (machine.clock.back_ms >= 0) == (machine.clock.proven_ms - machine.wall > MINUTE)
        assert RetentionClock.load(machine.clock.dump()) == machine.clock


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40 * MINUTE)), min_size=1, max_size=30))
def test_no_record_is_older_than_it_is_while_the_clock_goes_to_and_fro(
    history: list[tuple[bool, int]],
) -> None:
    """Back by two hours and right again, any number of times, within a day."""
    machine = Machine()
    written = []
    for back, wait in history:
        machine.error = -2 * HOUR if back else 0
        machine.look()
        machine.wait(wait)
        written.append((machine.wall, machine.true))
    machine.error = 0
    machine.look()
    for stamp, true in written:
        assert written_ms(stamp, machine.clock.spells) >= true


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b'{"format":2}',
        b'{"format":1}',
        b'{"format":1,"boot_id":7,"proven_ms":1,"boot_ms":1,"back_ms":-1,"lead_ms":0,"spells":[]}',
        b'{"format":1,"boot_id":"b","proven_ms":true,"boot_ms":1,"back_ms":-1,"lead_ms":0,"spells":[]}',
        b'{"format":1,"boot_id":"b","proven_ms":1.5,"boot_ms":1,"back_ms":-1,"lead_ms":0,"spells":[]}',
        b'{"format":1,"boot_id":"b","proven_ms":1,"boot_ms":1,"back_ms":-1,"lead_ms":0,"spells":[[1,2]]}',
        b'{"format":1,"boot_id":"b","proven_ms":1,"boot_ms":1,"back_ms":-1,"lead_ms":0,"spells":[3]}',
        b'{"format":1,"boot_id":"b","proven_ms":1,"boot_ms":1,"back_ms":5,"lead_ms":0,"spells":[]}',
        b'{"format":1,"boot_id":"b","proven_ms":1,"boot_ms":1,"back_ms":-1,"lead_ms":0,"spells":[],'
        b'"steps":[[1]]}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_clock_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # its text comes from several places
        RetentionClock.load(data)


def test_stored_clock_is_json_that_operators_can_read() -> None:
    clock = evolve(
        RetentionClock(NOW, "b", 5), back_ms=3, spells=(Spell(1, 2, 3),), steps=(Step(4, 5),)
    )
    assert json.loads(clock.dump()) == {
        "format": 1,
        "proven_ms": NOW,
        "boot_id": "b",
        "boot_ms": 5,
        "back_ms": 3,
        "lead_ms": 0,
        "spells": [[1, 2, 3]],
        "steps": [[4, 5]],
        "highest_ms": 0,
    }


def test_clock_of_before_there_were_steps_is_understood() -> None:
    value = json.loads(RetentionClock(NOW, "b", 5).dump())
    del value["steps"], value["highest_ms"]
    assert RetentionClock.load(json.dumps(value).encode()) == RetentionClock(NOW, "b", 5)
