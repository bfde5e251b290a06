"""Odradek without async: a broker inside a program, and a client, for plain synchronous code.

    with run_broker() as broker, connect(broker.bootstrap) as client:
        with client.producer() as producer:
            producer.send("events", b"value", key=b"key")

        with client.consumer("readers", ["events"], settings=from_the_start) as consumer:
            for record in consumer:
                print(record.offset, record.value)

Both run on trio, in a thread of their own that ends with the context: see `odradek.portal`. The
methods are those of `odradek.client`, with the same names, arguments and errors; they wait.
"""

from odradek.blocking.admin import Admin, Configs
from odradek.blocking.broker import NotRunning, RunningBroker, embedded_config, run_broker
from odradek.blocking.client import Client, connect
from odradek.blocking.consumer import Consumer
from odradek.blocking.faults import Faults
from odradek.blocking.producer import Deliveries, Delivery, Producer
from odradek.blocking.records import Records
from odradek.portal import PortalClosed

__all__ = [
    "Admin",
    "Client",
    "Configs",
    "Consumer",
    "Deliveries",
    "Delivery",
    "Faults",
    "NotRunning",
    "PortalClosed",
    "Producer",
    "Records",
    "RunningBroker",
    "connect",
    "embedded_config",
    "run_broker",
]
