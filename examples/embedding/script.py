"""A broker, a producer and a consumer in one script, without async."""

from odradek.blocking import connect, run_broker
from odradek.client import ConsumerSettings

with run_broker() as broker, connect(broker.bootstrap) as client:
    print("any Kafka client can connect to", broker.bootstrap)

    with client.producer() as producer:
        for number in range(10):
            producer.send("squares", b"%d" % number**2, key=b"%d" % number)

    settings = ConsumerSettings(auto_offset_reset="earliest")
    with client.consumer("readers", ["squares"], settings=settings) as consumer:
        for record in consumer:
            print(record.offset, record.key, record.value)
            if record.value == b"81":
                consumer.commit()
                break

    print(client.admin().group_offsets("readers"))
