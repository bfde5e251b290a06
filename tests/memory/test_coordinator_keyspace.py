"""The state beneath the coordinators in memory and embedded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.contracts.coordinator import (
    ABSENT,
    Absent,
    Check,
    Conflict,
    CoordinatorError,
    Delete,
    Entry,
    Op,
    Put,
    Session,
    SessionLost,
    Version,
)
from odradek.contracts.keyspace import Draft, Keyspace


class NamedSession(Session):
    def __init__(self, name: str) -> None:
        self.id = name

    @property
    def alive(self) -> bool:
        return True


SESSIONS = {name: NamedSession(name) for name in ("one", "two")}
KEYS = st.sampled_from(["a/x", "a/y", "b/x"])
VERSIONS = st.one_of(st.just(ABSENT), st.integers(1, 12).map(Version))
PUTS = st.builds(Put, KEYS, st.sampled_from([b"1", b"2"]), VERSIONS)
EPHEMERALS = st.builds(
    Put, KEYS, st.just(b"e"), st.just(ABSENT), st.sampled_from(list(SESSIONS.values()))
)
NUMBERS = st.integers(1, 12).map(Version)
OPS = st.one_of(PUTS, EPHEMERALS, st.builds(Delete, KEYS, NUMBERS), st.builds(Check, KEYS, NUMBERS))
TXNS = st.lists(OPS, min_size=1, max_size=3, unique_by=lambda op: op.key).map(tuple)
STEPS = st.lists(st.one_of(TXNS, KEYS, st.sampled_from(list(SESSIONS))), max_size=12)


def take(draft: Draft, step: tuple[Op, ...] | str) -> object:
    """Take one step, and return what it came to."""
    if isinstance(step, tuple):
        try:
            return draft.txn(step)
        except CoordinatorError as error:
            return type(error)
    if "/" in step:
        return draft.put(step, b"put")
    draft.end_session(step)
    return None


def everything(keyspace: Keyspace) -> object:
    entries = {**keyspace.list("a"), **keyspace.list("b")}
    owned = {name: keyspace.owned(name) for name in SESSIONS}
    assert owned == {
        name: {key for key, entry in entries.items() if entry.owner == name} for name in SESSIONS
    }
    return keyspace.revision, entries, [keyspace.has_session(name) for name in SESSIONS]


def keyspace_with_sessions() -> Keyspace:
    keyspace = Keyspace()
    for name in SESSIONS:
        keyspace.add_session(name)
    return keyspace


@given(STEPS)
def test_batch_comes_to_the_same_as_its_transactions_one_by_one(
    steps: list[tuple[Op, ...] | str],
) -> None:
    batched, single = keyspace_with_sessions(), keyspace_with_sessions()
    batch = batched.begin()
    for step in steps:
        draft = single.begin()
        assert take(batch, step) == take(draft, step)
        single.commit(draft)
    batched.commit(batch)
    assert everything(batched) == everything(single)


@given(STEPS, STEPS)
def test_draft_that_is_dropped_never_happened(
    before: list[tuple[Op, ...] | str], dropped: list[tuple[Op, ...] | str]
) -> None:
    keyspace = keyspace_with_sessions()
    draft = keyspace.begin()
    for step in before:
        take(draft, step)
    keyspace.commit(draft)
    expected = everything(keyspace)
    draft = keyspace.begin()
    for step in dropped:
        take(draft, step)
    assert everything(keyspace) == expected


@given(STEPS, TXNS)
def test_transaction_is_refused_exactly_when_an_expectation_is_not_met(
    before: list[tuple[Op, ...] | str], txn: tuple[Op, ...]
) -> None:
    keyspace = keyspace_with_sessions()
    draft = keyspace.begin()
    for step in before:
        take(draft, step)
    keyspace.commit(draft)

    def version(op: Op) -> Version | Absent:
        entry = keyspace.get(op.key)
        return ABSENT if entry is None else entry.version

    lost = any(
        isinstance(op, Put) and op.session is not None and not keyspace.has_session(op.session.id)
        for op in txn
    )
    unmet = any(version(op) != op.version for op in txn)
    draft = keyspace.begin()
    outcome = take(draft, txn)
    assert (outcome in {Conflict, SessionLost}) == (lost or unmet)
    assert bool(draft.changes) == (
        not (lost or unmet) and not all(isinstance(op, Check) for op in txn)
    )


@given(STEPS, STEPS)
def test_lasting_changes_are_all_that_a_disk_must_know(
    first: list[tuple[Op, ...] | str], second: list[tuple[Op, ...] | str]
) -> None:
    keyspace = keyspace_with_sessions()
    disk: dict[str, Entry] = {}
    for steps in (first, second):
        draft = keyspace.begin()
        for step in steps:
            take(draft, step)
        for key, new in draft.lasting_changes().items():
            if new is None:
                del disk[key]
            else:
                disk[key] = new
        keyspace.commit(draft)
        entries = {**keyspace.list("a"), **keyspace.list("b")}
        assert disk == {key: entry for key, entry in entries.items() if entry.owner is None}
