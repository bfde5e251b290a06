"""Odradek: a partitioned, append-only log service that speaks the Kafka protocol."""
