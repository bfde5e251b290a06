"""Which topics a consumer is subscribed to: names, or a pattern, resolved time and again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import trio

from odradek.client.cluster import Cluster
from odradek.client.errors import is_retriable
from odradek.client.metadata import Metadata
from odradek.errors import KafkaError, OdradekError

__all__ = ["TopicWatch"]

_MISSING_AGE = 5.0
"""Seconds after which topics are looked for again that do not exist yet."""


class TopicWatch:
    """Follows the topics of a subscription.

    `changed` is called with the topics when they are first known, and whenever they change. Names
    count whether or not their topics exist. A pattern has to match a topic's whole name; internal
    topics are left out.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: Iterable[str] | None,
        pattern: str | re.Pattern[str] | None,
        changed: Callable[[frozenset[str]], None],
    ) -> None:
        if (topics is None) == (pattern is None):
            raise ValueError("subscribe to topics, or to a pattern")
        if isinstance(topics, str):
            raise ValueError(f"topics is a collection of names: [{topics!r}]")
        topics = None if topics is None else frozenset(topics)
        if topics is not None and "" in topics:
            raise ValueError("the name of a topic is not empty")
        self.topics: frozenset[str] | None = topics
        self.last_error: OdradekError | None = None
        self._cluster = cluster
        self._pattern = None if pattern is None else re.compile(pattern)
        self._changed = changed

    async def run(self) -> None:
        """Watch until cancelled. Raises what renewing metadata raises and waiting cannot heal.

        And KafkaError for a topic that there can never be, or that one may not read:
        INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED.
        """
        with self._cluster.following(lambda: self.topics or ()):
            await self._watch()

    async def _watch(self) -> None:
        backoff = self._cluster.backoff()
        if self.topics is not None:
            self._changed(self.topics)
        while True:
            image_changed = self._cluster.image_changed
            try:
                image = await self._cluster.renew(None if self._pattern else self.topics)
            except OdradekError as error:
                if not is_retriable(error):
                    raise
                self.last_error = error
                await trio.sleep(backoff.next())
                continue
            self._check(image)
            backoff.reset()
            self.last_error = None
            self._resolve(image)
            age = self._cluster.settings.metadata_max_age
            if self._pattern is None and self.topics and self.topics - image.topics.keys():
                age = min(age, _MISSING_AGE)
            with trio.move_on_after(age):
                while True:  # whoever renews metadata may have seen new topics
                    await image_changed.wait()
                    image_changed = self._cluster.image_changed
                    self._resolve(self._cluster.metadata)

    def _check(self, image: Metadata) -> None:
        for name in self.topics or () if self._pattern is None else ():
            code = image.errors.get(name)
            if code is not None and not code.retriable:
                raise KafkaError(code, f"topic {name!r}")

    def _resolve(self, image: Metadata) -> None:
        if self._pattern is None:
            return
        found = frozenset(
            name
            for name, topic in image.topics.items()
            if not topic.internal and self._pattern.fullmatch(name)
        )
        if found != self.topics:
            self.topics = found
            self._changed(found)
