"""kafka-python's consumer."""

from __future__ import annotations

import warnings
from typing import Any

from tests.interop.members.base import options, stopping, tell, tell_assigned

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schemas by importlib.resources.read_text, deprecated in 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.errors import KafkaError

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # it has no types
    """Tells what is owned."""

    def __init__(self) -> None:
        self.owned: set[tuple[str, int]] = set()

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Tell what is left."""
        self.owned.difference_update((each.topic, each.partition) for each in revoked)
        tell_assigned(self.owned)

    def on_partitions_lost(self, lost: Any) -> None:
        """Tell what is left."""
        self.on_partitions_revoked(lost)

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Tell what is owned now."""
        self.owned.update((each.topic, each.partition) for each in assigned)
        tell_assigned(self.owned)


def main() -> None:
    """Consume until told to leave."""
    asked = options()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=asked.bootstrap,
        group_id=asked.group,
        group_instance_id=asked.instance,
        partition_assignment_strategy=[ASSIGNORS[asked.strategy]],
        session_timeout_ms=asked.session_ms,
        heartbeat_interval_ms=min(500, asked.session_ms // 3),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        metadata_max_age_ms=1000,
        reconnect_backoff_ms=20,
        reconnect_backoff_max_ms=200,
    )
    listener = Listener()
    consumer.subscribe(asked.topics, listener=listener)
    # 3.0.12 joins at the first poll, whether or not it has been told of the topics it subscribed
    # to. A leader that is told later has the group join once more: it compares what it noted of
    # them, which was nothing, though it may have known and assigned their partitions.
    while not consumer.topics().issuperset(asked.topics):
        continue
    stop = stopping()
    while not stop.is_set():
        # 3.0.12 throws away the result of a join that is over between two polls, and joins anew;
        # if it leads, by then, the whole group does. So no poll ends while it joins.
        found = consumer.poll(timeout_ms=100 if listener.owned else 10_000, max_records=500)
        records = [
            [each.topic, each.partition, each.offset, each.value.decode()]
            for part in found.values()
            for each in part
        ]
        if records:
            tell("records", records=records)
            try:
                ends = {(each[0], each[1]): each[2] + 1 for each in records}
                consumer.commit(
                    {
                        kafka.TopicPartition(*where): kafka.OffsetAndMetadata(end, "", -1)
                        for where, end in ends.items()
                    }
                )
                tell("committed")
            except KafkaError as failed:
                tell("error", text=repr(failed))
    consumer.close(autocommit=False)
    tell("left")


main()
