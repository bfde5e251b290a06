"""A broker in a thread beside an asyncio program, which uses the client that it likes."""

import asyncio
from contextlib import ExitStack

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from odradek.blocking import run_broker


async def main() -> None:
    with ExitStack() as stack:
        broker = await asyncio.to_thread(stack.enter_context, run_broker())
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            for number in range(3):
                await producer.send_and_wait("numbers", b"%d" % number)
        async with AIOKafkaConsumer(
            "numbers",
            bootstrap_servers=broker.bootstrap,
            group_id="readers",
            auto_offset_reset="earliest",
        ) as consumer:
            for _ in range(3):
                print((await consumer.getone()).value)
        await asyncio.to_thread(stack.close)


asyncio.run(main())
