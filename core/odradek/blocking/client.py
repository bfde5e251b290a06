"""A client, blocking: producers, consumers and administration, in one thread beside this one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from odradek.blocking.admin import Admin
from odradek.blocking.consumer import Assignment, Callback, Consumer, Hooks
from odradek.blocking.facade import Closable, Facade
from odradek.blocking.producer import Producer
from odradek.client import (
    Admin as _Admin,
)
from odradek.client import (
    ClientSettings,
    Cluster,
    ClusterHealth,
    ConsumerSettings,
    Partitioner,
    ProducerSettings,
    open_cluster,
    open_consumer,
    open_producer,
)
from odradek.portal import Portal, open_portal

__all__ = ["Client", "connect"]

C = TypeVar("C", bound=Closable)


@contextmanager
def connect(
    bootstrap: str | Iterable[str],
    settings: ClientSettings | None = None,
    *,
    portal: Portal | None = None,
) -> Iterator[Client]:
    """Give a `Client` of a cluster; leaving closes what was opened through it, the last first.

    `bootstrap`: addresses, as of `odradek.client.open_cluster`; nobody has to be reachable yet.
    `portal`: use that thread, not one of its own.

    Raises ValueError for addresses that cannot be understood, and PluginError.
    """
    with ExitStack() as stack:
        thread = stack.enter_context(open_portal()) if portal is None else portal
        cluster, inside = stack.enter_context(thread.enter(open_cluster(bootstrap, settings)))
        client = Client(inside, cluster)
        stack.push(client.close_all)
        yield client


class Client(Facade):
    """A cluster, to be used by any number of threads."""

    _behind: Cluster

    def __init__(self, portal: Portal, cluster: Cluster) -> None:
        super().__init__(portal, cluster)
        self._opened: dict[Closable, None] = {}

    def producer(
        self, settings: ProducerSettings | None = None, *, partitioner: Partitioner | None = None
    ) -> Producer:
        """Open a producer. `partitioner` is called in the client's thread, and must not block."""
        opening = open_producer(self._behind, settings, partitioner=partitioner)
        context = self._portal.enter(opening)
        producer, inside = context.__enter__()
        return self._own(Producer(inside, producer, self._portal).belongs_to(context, self._disown))

    def consumer(
        self,
        group: str | None = None,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        assignment: Assignment | None = None,
        settings: ConsumerSettings | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> Consumer:
        """Open a consumer, as `odradek.client.open_consumer` does.

        The callbacks run in a thread of their own, while whoever iterates may go on; they may use
        the consumer that they are given. What they raise ends the consumer.
        """
        hooks = Hooks(self._portal, on_assigned, on_revoked, on_lost)
        opening = open_consumer(
            self._behind,
            group,
            topics=topics,
            pattern=pattern,
            assignment=assignment,
            settings=settings,
            on_assigned=hooks.assigned,
            on_revoked=hooks.revoked,
            on_lost=hooks.lost,
        )
        context = self._portal.enter(opening)
        consumer, inside = context.__enter__()
        return self._own(Consumer(inside, hooks, consumer).belongs_to(context, self._disown))

    def admin(self, *, timeout: float = 30.0) -> Admin:
        """Return what administrates the cluster; there is nothing to close."""
        return Admin(self._portal, _Admin(self._behind, timeout=timeout))

    @property
    def health(self) -> ClusterHealth:
        """How the connections to the cluster are doing."""
        return self._portal.call_sync(lambda: self._behind.health)

    def close_all(self, *exception: object) -> None:
        """Close everything that was opened and not closed, the last first."""
        with ExitStack() as stack:
            for each in tuple(self._opened):
                stack.push(each)
            if exception and isinstance(exception[1], BaseException):
                raise exception[1]

    def _own(self, opened: C) -> C:
        self._opened[opened] = None
        return opened

    def _disown(self, closed: Closable) -> None:
        self._opened.pop(closed, None)
