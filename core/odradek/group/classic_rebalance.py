"""How a classic group comes from one generation to the next: the join and the sync phase."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from odradek.errors import ErrorCode
from odradek.group.classic import ClassicGroup, Event, State
from odradek.group.classic_member import join_refused
from odradek.group.records import encode_group, encode_group_key
from odradek.group.timers import Timer
from odradek.wire.api.a11_join_group import JoinGroupResponse, JoinGroupResponseMember
from odradek.wire.api.a14_sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from odradek.group.classic_member import Member
    from odradek.group.context import Context
    from odradek.group.effects import Request

__all__ = ["Rebalancing"]

_LEAST_WAIT_MS = 1_000
"""Between two attempts to end a join phase that nobody joined: a rebalance timeout may be 0."""


class Rebalancing:
    """The two phases, their timers, and what becomes of members that do not keep up.

    `idle` is called with the id of a group that may have lost the last thing it was kept for.
    """

    def __init__(self, context: Context, idle: Callable[[str], None]) -> None:
        self._context = context
        self._timers = context.timers
        self._weights = context.weights
        self._pending: dict[str, ClassicGroup] = {}  # by member id, the oldest first
        self._idle = idle

    # Groups and members come and go

    def adopt(self, group: ClassicGroup) -> None:
        """Give a group its timers, and those of its members, which begin a session."""
        group.join_timer = Timer(partial(self._join_phase_over, group))
        group.sync_timer = Timer(partial(self._sync_phase_over, group))
        for member in group.members.values():
            self.begin_session(group, member)
            self._weights.weigh(group, member)
        self._weights.weigh_topics(group)

    def begin_session(
        self, group: ClassicGroup, member: Member, timeout_ms: int | None = None
    ) -> None:
        """Give a member its session timer, and a whole session or `timeout_ms`."""
        timeout = member.terms.session_timeout_ms if timeout_ms is None else timeout_ms
        member.session = Timer(partial(self._session_over, group, member))
        self._timers.set(member.session, self._context.after(timeout))

    def keep_alive(self, member: Member) -> None:
        """Begin the member's session anew: it was heard of."""
        context = self._context
        deadline = context.now + member.terms.session_timeout_ms / 1000
        context.timers.set(member.session, deadline)

    def release(self, group: ClassicGroup) -> None:
        """Turn off every timer of a group that goes."""
        self._timers.cancel(group.join_timer)
        self._timers.cancel(group.sync_timer)
        for member_id, timer in group.pending.items():
            self._timers.cancel(timer)
            self._pending.pop(member_id, None)
        for member in group.members.values():
            self._timers.cancel(member.session)

    def add_pending(self, group: ClassicGroup, member_id: str, session_timeout_ms: int) -> None:
        """Expect a member to join with an id that it was given, within its session timeout.

        Whoever asks for ids and does not join with them must not keep others from joining: the
        oldest id of any group gives way.
        """
        timer = Timer(partial(self._pending_over, group, member_id))
        group.pending[member_id] = timer
        self._timers.set(timer, self._context.after(session_timeout_ms))
        self._pending[member_id] = group
        if len(self._pending) > self._context.settings.max_pending_members:
            oldest, its_group = next(iter(self._pending.items()))
            self._timers.cancel(its_group.pending[oldest])
            self._pending_over(its_group, oldest)

    def remove_pending(self, group: ClassicGroup, member_id: str) -> None:
        """Expect it no more."""
        self._timers.cancel(group.pending.pop(member_id))
        del self._pending[member_id]

    def remove(self, group: ClassicGroup, member: Member) -> None:
        """Remove a member; what it waits for is answered with UNKNOWN_MEMBER_ID.

        The caller sees to what the group does then (`after_removal`).
        """
        self.refuse(group, member, "", ErrorCode.UNKNOWN_MEMBER_ID)
        self._timers.cancel(member.session)
        self._weights.release(member)
        group.remove(member)

    def after_removal(self, group: ClassicGroup, event: Event) -> None:
        """Rebalance what is left of the group, or go on with the join phase."""
        if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self.prepare(group, event)
        else:
            self.maybe_complete(group)

    # Requests that wait

    def refuse(self, group: ClassicGroup, member: Member, member_id: str, error: ErrorCode) -> None:
        """Answer whatever the member waits for with an error; JoinGroup names `member_id`."""
        refused = join_refused(member_id, error, member.join_version)
        self.answer_join(group, member, refused)
        self.answer_sync(member, SyncGroupResponse(error_code=error))

    def wait_for_join(self, group: ClassicGroup, member: Member, request: Request) -> None:
        """Let a JoinGroup wait for the end of the join phase.

        One of the same member that waits already will never be read by a client that sent
        another; it is answered as a rebalance.
        """
        superseded = ErrorCode.REBALANCE_IN_PROGRESS
        self.answer_join(
            group, member, join_refused(member.member_id, superseded, member.join_version)
        )
        member.join_ticket = request.ticket
        member.join_version = request.version
        group.joining += 1

    def answer_join(self, group: ClassicGroup, member: Member, response: JoinGroupResponse) -> None:
        """Answer the member's JoinGroup if one waits."""
        if member.join_ticket is not None:
            self._context.reply(member.join_ticket, response)
            member.join_ticket = None
            group.joining -= 1

    def wait_for_sync(self, member: Member, ticket: int) -> None:
        """Let a SyncGroup wait for the assignment; as `wait_for_join` where one waits already."""
        error = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        self.answer_sync(member, error)
        member.sync_ticket = ticket

    def answer_sync(self, member: Member, response: SyncGroupResponse) -> bool:
        """Answer the member's SyncGroup if one waits; return whether it did."""
        if member.sync_ticket is None:
            return False
        self._context.reply(member.sync_ticket, response)
        member.sync_ticket = None
        return True

    # The join phase

    def prepare(self, group: ClassicGroup, event: Event) -> None:
        """Begin a join phase."""
        if group.state is State.COMPLETING_REBALANCE:
            self._give_out(group, {}, ErrorCode.REBALANCE_IN_PROGRESS)
        self._timers.cancel(group.sync_timer)
        group.unsynced.clear()
        group.initial = group.state is State.EMPTY
        group.step(event, self._context.now_ms)
        if group.initial:
            delay = self._context.settings.initial_rebalance_delay_ms
            if not delay:
                self._complete(group)
                return
            group.new_member_added = False
            group.initial_delay_ms = delay
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay, 0)
            self._timers.set(group.join_timer, self._context.after(delay))
        elif group.all_joined:
            self._complete(group)
        else:
            self._timers.set(group.join_timer, self._context.after(group.rebalance_timeout_ms))

    def maybe_complete(self, group: ClassicGroup) -> None:
        """End the join phase if it waits for nobody, and not for the initial delay."""
        if group.state is State.PREPARING_REBALANCE and not group.initial and group.all_joined:
            self._complete(group)

    def prepare_or_complete(self, group: ClassicGroup, event: Event) -> None:
        """Begin a join phase, or go on with the one under way."""
        if group.state is State.PREPARING_REBALANCE:
            self.maybe_complete(group)
        else:
            self.prepare(group, event)

    def _join_phase_over(self, group: ClassicGroup) -> None:
        if group.initial and group.new_member_added and group.initial_remaining_ms:
            # Others may follow: wait again, within the rebalance timeout (KIP-134).
            group.new_member_added = False
            delay = min(
                self._context.settings.initial_rebalance_delay_ms, group.initial_remaining_ms
            )
            group.initial_remaining_ms = max(group.initial_remaining_ms - group.initial_delay_ms, 0)
            group.initial_delay_ms = delay
            self._timers.set(group.join_timer, self._context.after(delay))
        else:
            self._complete(group)

    def _complete(self, group: ClassicGroup) -> None:
        self._timers.cancel(group.join_timer)
        group.initial = False
        late = [
            member
            for member in group.members.values()
            if member.join_ticket is None and member.instance_id is None
        ]
        for member in late:
            self.remove(group, member)
        if group.members and not group.joining:
            # Static members alone, and none has come: their sessions decide.
            again = max(group.rebalance_timeout_ms, _LEAST_WAIT_MS)
            self._timers.set(group.join_timer, self._context.after(again))
            return
        group.elect()
        group.next_generation(self._context.now_ms)
        self._weights.weigh_topics(group)
        if not group.members:
            # The group may empty again before this is stored, or it may fail: the log then has
            # an older generation, whose members run into their session timeouts after a replay.
            self.store(group, {}, lambda error: self._idle(group.group_id))
            return
        view = group.view()
        for member in group.members.values():
            leads = member.member_id == group.leader
            self.answer_join(group, member, self.joined(group, member, view if leads else []))
            self.keep_alive(member)
            member.is_new = False
            group.unsynced.add(member.member_id)
        self._timers.set(group.sync_timer, self._context.after(group.rebalance_timeout_ms))

    def joined(
        self,
        group: ClassicGroup,
        member: Member,
        view: list[JoinGroupResponseMember],
    ) -> JoinGroupResponse:
        """Return what tells a member of the current generation."""
        return JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=group.leader or "",
            member_id=member.member_id,
            members=view,
        )

    # The sync phase

    def store(
        self,
        group: ClassicGroup,
        assignments: Mapping[str, bytes],
        outcome: Callable[[ErrorCode], None],
    ) -> None:
        """Write the group's record."""
        group.recorded = True
        record = encode_group_key(group.group_id), encode_group(group.record(assignments))
        self._context.write([record], outcome)

    def assign(self, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
        """Take the leader's assignment: it is in force once it is stored."""
        generation = group.storing = group.generation

        def stored(error: ErrorCode) -> None:
            if group.storing == generation:
                group.storing = None
            if group.state is not State.COMPLETING_REBALANCE or group.generation != generation:
                return  # overtaken by a rebalance, which has answered everybody
            if error:
                self._give_out(group, {}, error)
                self.prepare(group, Event.SYNC_FAILED)
            else:
                group.step(Event.SYNCED, self._context.now_ms)
                self._give_out(group, assignments, ErrorCode.NONE)

        self.store(group, assignments, stored)

    def settled(self, group: ClassicGroup, member: Member) -> None:
        """A member has synced: it need not be waited for."""
        group.unsynced.discard(member.member_id)
        if not group.unsynced:
            self._timers.cancel(group.sync_timer)

    def synced(self, group: ClassicGroup, member: Member) -> SyncGroupResponse:
        """Return what tells a member its assignment."""
        return SyncGroupResponse(
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            assignment=member.assignment,
        )

    def _give_out(
        self, group: ClassicGroup, assignments: Mapping[str, bytes], error: ErrorCode
    ) -> None:
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            self._weights.weigh(group, member)
            response = SyncGroupResponse(error_code=error) if error else self.synced(group, member)
            if self.answer_sync(member, response):
                # Its session may have ended while it waited: waiting is no silence.
                self.keep_alive(member)

    def _sync_phase_over(self, group: ClassicGroup) -> None:
        for member_id in list(group.unsynced):
            self.remove(group, group.members[member_id])
        self.prepare(group, Event.SYNC_TIMEOUT)

    # Members that fall silent

    def _session_over(self, group: ClassicGroup, member: Member) -> None:
        waits = member.join_ticket is not None or member.sync_ticket is not None
        if waits and not member.is_new:
            return  # a member that waits cannot send heartbeats
        self.remove(group, member)
        self.after_removal(group, Event.FAILED)

    def _pending_over(self, group: ClassicGroup, member_id: str) -> None:
        del group.pending[member_id], self._pending[member_id]
        self.maybe_complete(group)
        self._idle(group.group_id)
