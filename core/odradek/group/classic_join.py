"""JoinGroup to a classic group.

Who asks is told apart by member id and group.instance.id:

| member id | instance id | the member is |
|--|--|--|
| none | none | new: it gets an id and, from version 4 on, has to come again with it (KIP-394) |
| none | new to the group | a new static member |
| none | known | a static member that came back: it takes its own place, under a new id |
| pending | none | new, on its second call |
| known | none, or its own | a member that joins the next generation, or missed an answer |
| anything else | | UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from odradek.errors import ErrorCode
from odradek.group.classic import ClassicGroup, Event, State
from odradek.group.classic_member import Member, Terms, join_refused, names
from odradek.group.member_budget import terms_weight
from odradek.wire.api.a11_join_group import JoinGroupRequest

if TYPE_CHECKING:
    from odradek.group.classic_rebalance import Rebalancing
    from odradek.group.context import Context
    from odradek.group.effects import Request

__all__ = ["Joining"]

_ID_PREFIX = 255
"""Characters of a client id that go into a member id. Kafka takes all: then a client id close to
32767 bytes gives a member id that no message can carry."""


class Joining:
    """Handles JoinGroup."""

    def __init__(self, context: Context, rebalancing: Rebalancing) -> None:
        self._context = context
        self._rebalancing = rebalancing

    def join(self, group: ClassicGroup, request: Request) -> None:
        """Handle a JoinGroup; it is answered now, or when the join phase is over."""
        message = cast("JoinGroupRequest", request.message)
        if len(message.protocols) > self._context.settings.max_protocols:
            self._refuse(request, message.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return
        terms = Terms.of(message)
        if not self._fits(group, message, terms):
            self._refuse(request, message.member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._has_room(group, message.member_id):
            member = group.members.get(message.member_id)
            if member is not None:
                self._rebalancing.remove(group, member)
                self._rebalancing.maybe_complete(group)
            elif message.member_id in group.pending:
                self._rebalancing.remove_pending(group, message.member_id)
                self._rebalancing.maybe_complete(group)
            self._refuse(request, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif not group.supports(message.protocol_type, names(terms.protocols)):
            self._refuse(request, message.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif message.member_id:
            self._join_known(group, request, message, terms)
        elif message.group_instance_id is None:
            self._join_dynamic(group, request, message, terms)
        else:
            self._join_static(group, request, message, terms)

    def _refuse(self, request: Request, member_id: str, error: ErrorCode) -> None:
        self._context.reply(request.ticket, join_refused(member_id, error, request.version))

    def _fits(self, group: ClassicGroup, message: JoinGroupRequest, terms: Terms) -> bool:
        """Whether the members' memory allows for this one; a client tries again when it is not."""
        member_id = message.member_id or group.instances.get(message.group_instance_id or "", "")
        member = group.members.get(member_id)
        before = 0 if member is None else terms_weight(member.terms)
        more = terms_weight(terms) - before
        return self._context.weights.fits(more, known=member is not None)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        most = self._context.settings.max_size
        member = group.members.get(member_id)
        if group.state is State.EMPTY:
            return True
        if group.state is State.PREPARING_REBALANCE:
            # Those who have joined count, not the members: a group that is over its size, since
            # that was lowered, loses those who join last. Static members that do not join stay
            # all the same, hence the second bound, which Kafka has not.
            if member is not None and member.join_ticket is not None:
                return True
            return group.joining < most and (member is not None or len(group.members) < 2 * most)
        return member is not None or len(group.members) < most

    def _join_dynamic(
        self, group: ClassicGroup, request: Request, message: JoinGroupRequest, terms: Terms
    ) -> None:
        member_id = self._new_id(request.client_id)
        if request.version < 4:
            self._add(group, request, message, terms, member_id)
        else:
            self._rebalancing.add_pending(group, member_id, message.session_timeout_ms)
            self._refuse(request, member_id, ErrorCode.MEMBER_ID_REQUIRED)

    def _join_static(
        self, group: ClassicGroup, request: Request, message: JoinGroupRequest, terms: Terms
    ) -> None:
        instance_id = str(message.group_instance_id)
        member_id = self._new_id(instance_id)
        known = group.instances.get(instance_id)
        if known is None:
            self._add(group, request, message, terms, member_id)
        else:
            self._return_static(group, request, terms, group.members[known], member_id)

    def _new_id(self, prefix: str) -> str:
        return f"{prefix[:_ID_PREFIX]}-{self._context.new_id()}"

    def _add(
        self,
        group: ClassicGroup,
        request: Request,
        message: JoinGroupRequest,
        terms: Terms,
        member_id: str,
    ) -> None:
        member = Member(
            member_id, message.group_instance_id, request.client_id, request.client_host, terms
        )
        member.is_new = True
        if group.state is State.PREPARING_REBALANCE and group.initial:
            group.new_member_added = True
        group.add(member, message.protocol_type)
        self._context.weights.weigh(group, member)
        rebalancing = self._rebalancing
        rebalancing.wait_for_join(group, member, request)
        # It sends no heartbeats while it waits. Should it be gone, nobody is told: the connection
        # does not show it while a request waits. So it is given up after this time.
        rebalancing.begin_session(group, member, self._context.settings.new_member_timeout_ms)
        rebalancing.prepare_or_complete(group, Event.JOINED)

    def _join_known(
        self, group: ClassicGroup, request: Request, message: JoinGroupRequest, terms: Terms
    ) -> None:
        member_id = message.member_id
        if member_id in group.pending and message.group_instance_id is None:
            self._rebalancing.remove_pending(group, member_id)
            self._add(group, request, message, terms, member_id)
            return
        error = group.member_error(member_id, message.group_instance_id)
        if error:
            self._refuse(request, member_id, error)
            return
        member = group.members[member_id]
        leads = member_id == group.leader
        same = member.terms.protocols == terms.protocols
        if group.state is State.COMPLETING_REBALANCE and same:
            # It has not got the answer to its last JoinGroup.
            self._tell(group, request, member, leads)
        elif group.state is State.STABLE and same and not leads:
            self._tell(group, request, member, leads)
        else:
            # In a Stable group the leader asks for a rebalance by joining: something that it
            # watches has changed, such as the partitions of a topic.
            group.update(member, terms)
            self._context.weights.weigh(group, member)
            self._rebalancing.wait_for_join(group, member, request)
            self._rebalancing.prepare_or_complete(group, Event.REJOINED)

    def _tell(self, group: ClassicGroup, request: Request, member: Member, leads: bool) -> None:
        view = group.view() if leads else []
        self._context.reply(request.ticket, self._rebalancing.joined(group, member, view))

    # Static members that come back

    def _return_static(
        self, group: ClassicGroup, request: Request, terms: Terms, old: Member, member_id: str
    ) -> None:
        rebalancing = self._rebalancing
        leader_before = group.leader
        rebalancing.refuse(group, old, old.member_id, ErrorCode.FENCED_INSTANCE_ID)
        self._context.timers.cancel(old.session)
        new = Member(
            member_id,
            old.instance_id,
            request.client_id,
            request.client_host,
            terms,
            old.assignment,
        )
        self._replace(group, old, new)
        rebalancing.begin_session(group, new)
        rebalancing.wait_for_join(group, new, request)
        if group.state is State.STABLE:
            # Metadata are not compared as bytes: those of a cooperative member tell what it owns,
            # which is nothing after a restart. What it wants is what counts.
            if group.select_protocol() == group.protocol and group.topics() == group.subscribed:
                self._take_over(group, request, old, new, leader_before or "")
            else:
                rebalancing.prepare(group, Event.REJOINED)
        else:
            # In CompletingRebalance the leader may have been told of the old id already, and
            # would assign to that.
            rebalancing.prepare_or_complete(group, Event.REJOINED)

    def _replace(self, group: ClassicGroup, old: Member, new: Member) -> None:
        group.replace(old, new)
        self._context.weights.release(old)
        self._context.weights.weigh(group, new)

    def _take_over(
        self, group: ClassicGroup, request: Request, old: Member, new: Member, leader_before: str
    ) -> None:
        def stored(error: ErrorCode) -> None:
            if group.state is not State.STABLE or new.join_ticket != request.ticket:
                return  # a rebalance, or the next return, has it in hand or has answered
            if error:
                self._rebalancing.refuse(group, new, "", error)
                self._context.timers.cancel(new.session)
                self._replace(group, new, old)
                self._rebalancing.begin_session(group, old)
                return
            leads = new.member_id == group.leader
            response = self._rebalancing.joined(group, new, [])
            if request.version >= 9:
                # It is told that it leads, but not to assign (KIP-814).
                response.members = group.view() if leads else []
                response.skip_assignment = leads
            else:
                # It must not assign, so it must not see that it leads: the old id is named.
                response.leader = leader_before
            self._rebalancing.answer_join(group, new, response)
            self._rebalancing.keep_alive(new)

        assignments = {member.member_id: member.assignment for member in group.members.values()}
        self._rebalancing.store(group, assignments, stored)
