"""Consumer groups without a broker's help, as in the paper of 2011: members agree by a coordinator.

`open_membership` makes a member; consumers do, with ``group_protocol="decentralised"``. The other
functions are for tools.

How it works, and what it promises: docs/client/decentralised.md.
"""

from odradek.client.decentralised.life import CoordinatorClosed
from odradek.client.decentralised.membership import DecentralisedMembership, open_membership
from odradek.client.decentralised.tools import (
    DecentralisedGroup,
    PartitionState,
    delete_group,
    describe_group,
    described,
    list_groups,
    reset_offsets,
)

__all__ = [
    "CoordinatorClosed",
    "DecentralisedGroup",
    "DecentralisedMembership",
    "PartitionState",
    "delete_group",
    "describe_group",
    "described",
    "list_groups",
    "open_membership",
    "reset_offsets",
]
