"""Writes to an embedded coordinator until it is killed or fails; says what was acknowledged.

Each line on standard output is ``task number``, written after the acknowledgement: the keys
``left/task`` and ``right/task`` hold at least that number from then on. A failure is a line
``error ClassName``.
"""

import os
import sys
from pathlib import Path

import trio

from odradek.contracts.coordinator import ABSENT, CoordinatorError, Put
from odradek.embedded.coordinator import open_embedded_coordinator


async def main(directory: Path, tasks: int, size: int) -> None:
    async with open_embedded_coordinator(directory) as coordinator:
        os.write(1, b"open\n")
        async with coordinator.session(1) as session, trio.open_nursery() as nursery:
            await coordinator.txn(Put("mine/key", b"v", ABSENT, session))

            async def write(task: int) -> None:
                entry = await coordinator.get(f"left/{task}")
                number = int(entry.value.split()[0]) if entry else 0
                while True:
                    number += 1
                    value = b"%d " % number + bytes(size)
                    left, right = [
                        await coordinator.get(f"{side}/{task}") for side in ("left", "right")
                    ]
                    try:
                        await coordinator.txn(
                            Put(f"left/{task}", value, left.version if left else ABSENT),
                            Put(f"right/{task}", value, right.version if right else ABSENT),
                        )
                    except CoordinatorError as error:
                        os.write(1, b"error %s\n" % type(error).__name__.encode())
                        return
                    os.write(1, b"%d %d\n" % (task, number))

            for task in range(tasks):
                nursery.start_soon(write, task)


trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
