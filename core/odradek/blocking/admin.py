"""Administration, blocking."""

from __future__ import annotations

from odradek import client
from odradek.blocking.facade import Facade, blocking
from odradek.client.configs import Configs as _Configs

__all__ = ["Admin", "Configs"]


class Configs(Facade):
    """Reads and changes settings; see `odradek.client.configs.Configs`."""

    describe = blocking(_Configs.describe)
    alter = blocking(_Configs.alter)


class Admin(Facade):
    """Administrative requests; see `odradek.client.Admin`. Any thread may use it.

    Requests about several things answer for each; an exception means that nothing is known of
    any of them.
    """

    list_topics = blocking(client.Admin.list_topics)
    describe_topics = blocking(client.Admin.describe_topics)
    create_topics = blocking(client.Admin.create_topics)
    create_topic = blocking(client.Admin.create_topic)
    delete_topics = blocking(client.Admin.delete_topics)
    create_partitions = blocking(client.Admin.create_partitions)
    delete_records = blocking(client.Admin.delete_records)
    describe_cluster = blocking(client.Admin.describe_cluster)
    describe_log_dirs = blocking(client.Admin.describe_log_dirs)

    list_groups = blocking(client.Admin.list_groups)
    describe_groups = blocking(client.Admin.describe_groups)
    delete_groups = blocking(client.Admin.delete_groups)
    group_offsets = blocking(client.Admin.group_offsets)
    alter_group_offsets = blocking(client.Admin.alter_group_offsets)
    delete_group_offsets = blocking(client.Admin.delete_group_offsets)
    plan_group_reset = blocking(client.Admin.plan_group_reset)
    log_ranges = blocking(client.Admin.log_ranges)

    @property
    def configs(self) -> Configs:
        """Settings of topics and brokers."""
        return Configs(self._portal, self._behind.configs)
