"""What a local storage holds, against what the coordinator says that it should hold.

They are two directories, or a directory and a server, and each can be lost, restored from an old
backup or simply not be mounted. Nothing is removed and nothing refused for it, but not a word
about it would mean that records vanish unnoticed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from odradek.cluster.image import Image
from odradek.types import PartitionKey

__all__ = ["differences"]

NAMED = 5


def differences(image: Image, broker_id: int, stored: Collection[PartitionKey]) -> Iterator[str]:
    """Yield a message for each kind of difference. Call it before any log is opened.

    A topic that was created in the very moment of a crash is among the missing ones too.
    """
    missing = [
        f"{image.names[key.topic_id]}-{key.partition}"
        for key, partition in image.partitions.items()
        if broker_id in partition.replicas and key.topic_id in image.names and key not in stored
    ]
    if missing:
        yield (
            f"no log is in the storage for {_listed(missing)}: served as empty from now on. If "
            "records were in it, stop the broker, and mount or restore the storage"
        )
    unknown = [
        str(key)
        for key in stored
        if key.topic_id not in image.names and key.topic_id not in image.deleted
    ]
    if unknown:
        yield (
            f"the storage holds {_listed(unknown)} of no topic that the coordinator knows: left "
            "as it is. If topics are missing, stop the broker, and restore the coordinator's data"
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:NAMED])
    if len(names) > NAMED:
        shown += ", ..."
    return f"{len(names)} partition{'s' if len(names) > 1 else ''} ({shown})"
