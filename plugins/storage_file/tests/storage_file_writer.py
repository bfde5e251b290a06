"""Appends until it is killed, and writes down what was acknowledged. Run by the kill -9 test."""

from __future__ import annotations

import sys
from uuid import UUID

import trio

from odradek.contracts.storage import Claim, LogEdit
from odradek.testing.storage import Log
from odradek.types import PartitionKey
from odradek_storage_file import FileStorageSettings, open_file_store

TOPIC = UUID("0b1f3c5e-7a9c-4d2e-8f60-112233445566")


async def main(url: str, epoch: int) -> None:
    settings = FileStorageSettings(recovery_bytes=65_536, min_free_bytes=0)
    async with open_file_store(url, settings) as store:

        async def partition(number: int) -> None:
            writer = await store.open_writer(PartitionKey(TOPIC, number), Claim(epoch, 1))
            log = Log(writer, epoch=epoch)
            print("open", number, log.end, writer.recovery.cut_bytes, flush=True)
            for i in range(10**9):
                ticket = log.append(1 + i % 3, value_bytes=200 + 37 * (i % 50))
                log.batches.clear()
                if i % 17 == 16:
                    writer.roll()
                if i % 101 == 100:
                    keep = writer.snapshot.segments[-4:]
                    gone = [s.id for s in writer.snapshot.segments if s not in keep]
                    blobs = {"n": b"%d" % log.end}
                    edit = LogEdit(tuple(gone), (), keep[0].base_offset, blobs, linger_ms=20)
                    await writer.commit(edit)
                    print("start", number, keep[0].base_offset, flush=True)
                await ticket.wait()
                print("ack", number, ticket.end_offset, flush=True)

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(partition, number)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]))
