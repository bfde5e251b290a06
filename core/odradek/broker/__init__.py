"""The broker: connections, requests and the partitions that it leads.

    async with open_broker(config) as broker:
        print(broker.addresses)

* `broker`: a broker's parts and life cycle
* `serve`: connections; `dispatch`: from a frame to a handler; `waiting`: responses to come
* `membership`: being known as alive
* `hosting`: the partitions led here, in step with the cluster
* `handlers`: one module per API of the Kafka protocol, named by its key
"""

from odradek.broker.broker import Broker, IdInUse, open_broker
from odradek.broker.host import Host

__all__ = ["Broker", "Host", "IdInUse", "open_broker"]
