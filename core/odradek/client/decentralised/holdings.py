"""What one member has in the coordinator under one session: its registration and its claims.

Every write is a transaction whose expectations make it apply at most once, and never after a
later one:

* A claim creates the owner's entry, which only one session can, and overwrites the partition's
  entry of offsets, with a new token, at the version that was read.
* A commit writes the entry of offsets at the version of the claim, or of the last commit, and
  checks the member's registration. So it fails from the moment another has claimed the partition,
  and as soon as the session has ended.
* A release deletes the owner's entry, and checks the entry of offsets: a release whose answer was
  lost (Uncertain) cannot take the partition from whoever claims it next.

What was uncertain is settled by reading again and deciding anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
from typing import TypeAlias

import trio
from attrs import define, evolve

from odradek.client.backoff import Backoff
from odradek.client.decentralised.access import enter_index, read
from odradek.client.decentralised.keys import (
    GroupKeys,
    Registration,
    StoredOffset,
    offset_of,
    offset_value,
    owner_value,
    registration_value,
)
from odradek.client.decentralised.planning import pack
from odradek.client.membership import CommitFailed, CommittedOffset
from odradek.contracts.coordinator import (
    ABSENT,
    MAX_VALUE_BYTES,
    Absent,
    Check,
    Conflict,
    Coordinator,
    CoordinatorError,
    Delete,
    Entry,
    Op,
    Put,
    Session,
    SessionLost,
    Unavailable,
    Uncertain,
    Version,
)
from odradek.errors import OdradekError
from odradek.types import PartitionKey

__all__ = ["Claim", "Holdings"]


@define(slots=True, eq=False)
class Claim:
    """A partition that this member owns, while its session lives.

    `owner` is the version of the owner's entry, `fence` that of the entry of offsets, whose
    contents are `stored`.
    """

    owner: Version
    fence: Version
    stored: StoredOffset


_Uncommitted: TypeAlias = dict[PartitionKey, tuple[Claim, CommittedOffset]]


class Holdings:
    """A member's keys under one session, and what it may do with them; gone with the session.

    `held` are its claims; a method that fails has changed it as far as it got, and may be called
    again. `claim`, `release` and `check` are for one task, `commit` for any.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        keys: GroupKeys,
        member: str,
        session: Session,
        backoff: Callable[[], Backoff],
        tokens: Iterator[str],
    ) -> None:
        self.session = session
        self.held: dict[PartitionKey, Claim] = {}
        self._coordinator = coordinator
        self._keys = keys
        self._member = member
        self._backoff = backoff
        self._tokens = tokens
        self._registration = keys.member(session.id)
        self._registered: Version | Absent = ABSENT
        self._indexed = False
        self._writing = trio.Lock()  # commits and releases of a partition have an order

    # --- the registration

    async def register(self, registration: Registration) -> None:
        """Announce the member as it is now.

        Raises ValueError when the registration is too large for the coordinator, SessionLost,
        Unavailable and Denied.
        """
        value = registration_value(registration)
        if len(value) > MAX_VALUE_BYTES:
            raise ValueError(
                f"{len(registration.topics)} topics are too many for a member of a decentralised "
                f"group: its registration has {len(value)} bytes, at most {MAX_VALUE_BYTES} may be"
            )
        backoff = self._backoff()
        while True:
            self._check_alive()
            session = self.session if self._registered is ABSENT else None
            try:
                (self._registered,) = await self._coordinator.txn(
                    Put(self._registration, value, self._registered, session)
                )
            except Conflict:
                pass
            except Uncertain:
                await trio.sleep(backoff.next())
            else:
                return
            entry = await self._coordinator.get(self._registration)
            self._registered = ABSENT if entry is None else entry.version
            if entry is not None and entry.value == value:
                return

    # --- claims

    async def claim(self, wanted: Mapping[PartitionKey, str]) -> frozenset[PartitionKey]:
        """Claim partitions, given with their topics' names; return those that others own.

        A partition that this session owns already, because an answer was lost, is claimed anew.
        Raises SessionLost, Unavailable and Denied; OdradekError for an entry of offsets that
        cannot be read.
        """
        left, taken = dict(wanted), set[PartitionKey]()
        owners: Mapping[PartitionKey, Entry] = {}
        backoff = self._backoff()
        for attempt in count():
            if not left:
                break
            if attempt > 1:  # the first may fail for what was not known; then somebody races
                await trio.sleep(backoff.next())
            self._check_alive()
            offsets = await self._read(self._keys.offsets, left)
            if not self._indexed and left.keys() - offsets.keys():
                await enter_index(self._coordinator, self._keys)
                self._indexed = True
            token = next(self._tokens)
            attempts: list[tuple[tuple[PartitionKey, StoredOffset], tuple[Op, ...]]] = []
            for partition, topic in left.items():
                entry = offsets.get(partition)
                committed = None if entry is None else offset_of(entry).committed
                stored = StoredOffset(token, topic, committed)
                attempts.append(
                    (
                        (partition, stored),
                        (
                            self._own(partition, topic, owners.get(partition)),
                            Put(
                                self._keys.offset(partition),
                                offset_value(stored),
                                ABSENT if entry is None else entry.version,
                            ),
                        ),
                    )
                )
            for items, ops in pack(attempts):
                try:
                    versions = await self._coordinator.txn(*ops)
                except (Conflict, Uncertain):
                    continue  # reading tells
                for place, (partition, stored) in enumerate(items):
                    owner, fence = versions[2 * place : 2 * place + 2]
                    assert owner is not ABSENT
                    assert fence is not ABSENT
                    self.held[partition] = Claim(owner, fence, stored)
                    del left[partition]
            if left:
                owners = await self._read(self._keys.owners, left)
                for partition, entry in owners.items():
                    if entry.owner != self.session.id:
                        taken.add(partition)
                        del left[partition]
        return frozenset(taken)

    def _own(self, partition: PartitionKey, topic: str, entry: Entry | None) -> Op:
        key = self._keys.owner(partition)
        if entry is not None:  # this session's own
            return Check(key, entry.version)
        return Put(key, owner_value(self._member, topic), ABSENT, self.session)

    async def release(self, partitions: Collection[PartitionKey]) -> None:
        """Let go of partitions, whether they are held or only turn out to be this session's.

        From the beginning of the call on they are not held. Raises Unavailable and Denied; what
        was not released then is this session's without being held: release it again, or claim it.
        """
        async with self._writing:
            left = set(partitions)
            known = {each: self.held.pop(each) for each in partitions if each in self.held}
            attempts = [
                (each, self._let_go(each, claim.owner, claim.fence))
                for each, claim in known.items()
            ]
            backoff = self._backoff()
            for attempt in count():
                if not left:
                    break
                if attempt > 1:
                    await trio.sleep(backoff.next())
                for items, ops in pack(attempts):
                    try:
                        await self._coordinator.txn(*ops)
                    except (Conflict, Uncertain):
                        continue  # reading tells
                    left.difference_update(items)
                if left:
                    owners = await self._read(self._keys.owners, left)
                    left = {
                        each
                        for each, entry in owners.items()
                        if each in left and entry.owner == self.session.id
                    }
                    offsets = await self._read(self._keys.offsets, left)
                    attempts = [
                        (
                            each,
                            self._let_go(
                                each,
                                owners[each].version,
                                offsets[each].version if each in offsets else None,
                            ),
                        )
                        for each in left
                    ]

    def _let_go(
        self, partition: PartitionKey, owner: Version, fence: Version | None
    ) -> tuple[Op, ...]:
        delete = Delete(self._keys.owner(partition), owner)
        if fence is None:  # somebody deleted the group's offsets
            return (delete,)
        return delete, Check(self._keys.offset(partition), fence)

    async def check(self, partitions: Collection[PartitionKey]) -> frozenset[PartitionKey]:
        """Return which of the partitions, held as far as is known, are not; they are forgotten.

        Raises Unavailable and Denied, OdradekError for an entry that cannot be read.
        """
        held = self.held.keys() & partitions
        owners = await self._read(self._keys.owners, held)
        offsets = await self._read(self._keys.offsets, held)
        gone = set()
        for partition in held:
            owner, offset = owners.get(partition), offsets.get(partition)
            claim = self.held[partition].stored.claim
            if (
                owner is None
                or owner.owner != self.session.id
                or offset is None
                or offset_of(offset).claim != claim
            ):
                gone.add(partition)
                del self.held[partition]
        return frozenset(gone)

    # --- offsets

    async def commit(
        self, offsets: Mapping[PartitionKey, CommittedOffset], deadline: float
    ) -> dict[PartitionKey, OdradekError]:
        """Commit offsets; return the error of each partition whose offset may not be stored.

        Commits of one member are carried out in the order of the calls, in as few transactions as
        the contract allows, each of which is applied whole or not at all. What may pass is tried
        again until `deadline`, on trio's clock. Errors: CommitFailed where the partition is not
        this member's (any more); Unavailable, nothing stored; Uncertain; Denied.
        """
        async with self._writing:
            failed: dict[PartitionKey, OdradekError] = {}
            left: _Uncommitted = {}
            for partition, offset in offsets.items():
                claim = self.held.get(partition)
                if claim is None:
                    failed[partition] = _fenced(partition)
                else:
                    left[partition] = claim, offset
            backoff = self._backoff()
            while left:
                if not self.session.alive:
                    failed.update((each, _fenced(each)) for each in left)
                    break
                errors = await self._attempt(left)
                try:
                    if left:
                        await self._settle(left, failed)
                except (Unavailable, Uncertain) as error:
                    errors = {**dict.fromkeys(left, error), **errors}
                if errors:
                    wait = backoff.next()
                    if trio.current_time() + wait >= deadline:
                        failed.update((each, errors[each]) for each in left if each in errors)
                        break
                    await trio.sleep(wait)
            return failed

    async def _attempt(self, left: _Uncommitted) -> dict[PartitionKey, CoordinatorError]:
        """Write what is left; what is written is so no longer. Return what was in the way."""
        errors: dict[PartitionKey, CoordinatorError] = {}
        attempts: list[tuple[tuple[PartitionKey, Claim, StoredOffset], tuple[Op, ...]]] = []
        for partition, (claim, offset) in left.items():
            stored = evolve(claim.stored, committed=offset)
            put = Put(self._keys.offset(partition), offset_value(stored), claim.fence)
            attempts.append(((partition, claim, stored), (put,)))
        assert self._registered is not ABSENT, "a claim comes after the registration"
        for items, ops in pack(attempts, Check(self._registration, self._registered)):
            try:
                _, *versions = await self._coordinator.txn(*ops)
            except Conflict:
                continue
            except (Unavailable, Uncertain) as error:
                errors.update((partition, error) for partition, _, _ in items)
                continue
            for (partition, claim, stored), version in zip(items, versions, strict=True):
                assert version is not ABSENT
                claim.fence, claim.stored = version, stored
                del left[partition]
        return errors

    async def _settle(self, left: _Uncommitted, failed: dict[PartitionKey, OdradekError]) -> None:
        """Read what became of the offsets left: some are written, others are not ours any more."""
        registered = await self._coordinator.get(self._registration)
        if registered is None:
            failed.update((each, _fenced(each)) for each in left)
            left.clear()
            return
        self._registered = registered.version
        entries = await self._read(self._keys.offsets, left)
        for partition, (claim, offset) in list(left.items()):
            entry = entries.get(partition)
            found = None if entry is None else offset_of(entry)
            if entry is None or found is None or found.claim != claim.stored.claim:
                failed[partition] = _fenced(partition)
                del left[partition]
                continue
            claim.fence, claim.stored = entry.version, found
            if found.committed == offset:
                del left[partition]

    # --- inside

    async def _read(
        self, directory: str, partitions: Collection[PartitionKey]
    ) -> dict[PartitionKey, Entry]:
        return await read(self._coordinator, directory, partitions)

    def _check_alive(self) -> None:
        if not self.session.alive:
            raise SessionLost(f"the session of member {self._member!r} has ended")


def _fenced(partition: PartitionKey) -> CommitFailed:
    return CommitFailed(f"partition {partition} is not this member's any more")
