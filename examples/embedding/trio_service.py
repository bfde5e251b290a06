"""A trio service that carries its broker inside: an audit log that other programs may read."""

import sys

import trio

from odradek.broker import open_broker
from odradek.client import open_producer
from odradek.config import config_from_options


async def serve(directory: str) -> None:
    config = config_from_options(listen=["tcp://127.0.0.1:0"], storage=f"file://{directory}")
    async with open_broker(config) as broker:
        (bootstrap,) = broker.addresses.values()
        async with open_producer(bootstrap) as audit:
            await audit.send("audit", b"the service began")
            await work()
            await audit.send("audit", b"the service ends")


async def work() -> None:
    """Do what the service is for."""
    await trio.sleep(0.1)


async def main() -> None:
    # However it ends, by itself, by an exception or by a cancellation from outside, the broker
    # answers what it has read and closes its logs before `open_broker` is left.
    with trio.move_on_after(10):
        await serve(sys.argv[1])


if __name__ == "__main__":
    trio.run(main)
