"""Electing a leader, written once for every coordinator.

An election is two keys: ``elections/<name>``, ephemeral, says who leads; ``epochs/<name>``,
persistent, counts leaderships. Both are written in one transaction, so no epoch is given twice.
The fence is a check of the *counter*: the holder's own version would not do, because it may
repeat when the key is created again (C5), while the counter is never deleted.

Promises C24 to C26 of `odradek.contracts.coordinator`.
"""

from __future__ import annotations

import json
from typing import Final

from attrs import frozen

from odradek.contracts.coordinator import (
    ABSENT,
    Check,
    Conflict,
    Coordinator,
    Entry,
    Put,
    Session,
    SessionLost,
    Uncertain,
    Version,
)
from odradek.errors import OdradekError

__all__ = ["ELECTIONS", "EPOCHS", "Holder", "Leader", "elect", "holder_of"]

ELECTIONS: Final = "elections"
"""The directory to watch: its entries come and go with the leaders."""
EPOCHS: Final = "epochs"
"""The directory of the counters."""


@frozen(slots=True)
class Leader:
    """A leadership that was won.

    `epoch` starts at 1 and grows with each leadership of the name. `fence` belongs into every
    transaction that is written as leader: it fails once there is a later leader (C26).
    """

    epoch: int
    fence: Check


@frozen(slots=True)
class Holder:
    """Who leads, as the entry in `ELECTIONS` says: `who` as given to `elect`, and the epoch."""

    who: str
    epoch: int


def holder_of(entry: Entry) -> Holder:
    """Read an entry of the directory `ELECTIONS`.

    Raises OdradekError when the value is not one that `elect` wrote.
    """
    try:
        fields = json.loads(entry.value)
        return Holder(who=str(fields["who"]), epoch=int(fields["epoch"]))
    except (ValueError, KeyError, TypeError) as error:
        raise OdradekError(f"{entry.key!r} does not hold the leader of an election") from error


async def elect(coordinator: Coordinator, name: str, session: Session, who: str) -> Leader | None:
    """Try once to become the leader of `name`; None when somebody else is.

    `who` tells the others how to find the leader, and is unique among the candidates of one
    session. Whoever holds the leadership already, through this session, is given it again with
    the same epoch: so call it again after an error. To wait for one's turn, watch `ELECTIONS`
    and call again when the entry of `name` goes.

    Leadership ends with the session. A cancelled call may have won: call again, or leave the
    session.

    Raises SessionLost when the session ended, Unavailable and Denied as the coordinator does.
    """
    holder_key = f"{ELECTIONS}/{name}"
    epoch_key = f"{EPOCHS}/{name}"
    while True:
        holder = await coordinator.get(holder_key)
        counter = await coordinator.get(epoch_key)
        epoch = 0 if counter is None else _epoch_of(counter)
        if holder is not None:
            held = holder_of(holder)
            if holder.owner != session.id or held.who != who:
                return None
            if not session.alive:
                raise SessionLost(f"the session of {who!r} ended, and with it its leadership")
            if counter is not None and epoch == held.epoch:
                return Leader(epoch, Check(epoch_key, counter.version))
            continue  # the two reads saw different moments: somebody else leads by now
        value = json.dumps({"who": who, "epoch": epoch + 1}).encode()
        try:
            version, _ = await coordinator.txn(
                Put(epoch_key, b"%d" % (epoch + 1), counter.version if counter else ABSENT),
                Put(holder_key, value, ABSENT, session),
            )
        except (Conflict, Uncertain):
            continue  # the holder's entry says who won, even if it was this very transaction
        assert version is not ABSENT
        return Leader(epoch + 1, Check(epoch_key, Version(version)))


def _epoch_of(counter: Entry) -> int:
    try:
        return int(counter.value)
    except ValueError as error:
        raise OdradekError(f"{counter.key!r} does not hold the epoch of an election") from error
