"""AddPartitionsToTxn (API key 24): make partitions part of a transaction.

Versions 0 to 5; flexible from 3.

    v0   the first one (KIP-98)
    v1   throttled responses are sent before the wait (KIP-219)
    v2   PRODUCER_FENCED may be answered (KIP-588)
    v3   flexible; the last version for clients
    v4   several transactions, verify_only, a top-level error_code: between brokers
         (KIP-890)
    v5   TRANSACTION_ABORTABLE may be answered (KIP-890)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, bool_, int16, int32, int64, string

__all__ = [
    "AddPartitionsToTxnPartitionResult",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AddPartitionsToTxnResult",
    "AddPartitionsToTxnTopic",
    "AddPartitionsToTxnTopicResult",
    "AddPartitionsToTxnTransaction",
]


class AddPartitionsToTxnTopic(Struct):
    """An element of `AddPartitionsToTxnTransaction.topics`
    and `AddPartitionsToTxnRequest.v3_and_below_topics`.
    """

    name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class AddPartitionsToTxnTransaction(Struct):
    """An element of `AddPartitionsToTxnRequest.transactions`."""

    transactional_id: str = string("4+")
    producer_id: int = int64("4+")
    producer_epoch: int = int16("4+")
    verify_only: bool = bool_("4+")
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "4+")


class AddPartitionsToTxnRequest(Message, api_key=24, versions="0-5", flexible="3+"):
    """What a client sends."""

    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, "4+")
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "0-3")


class AddPartitionsToTxnPartitionResult(Struct):
    """An element of `AddPartitionsToTxnTopicResult.results_by_partition`."""

    partition_index: int = int32("0+")
    partition_error_code: int = int16("0+")


class AddPartitionsToTxnTopicResult(Struct):
    """An element of `AddPartitionsToTxnResult.topic_results`
    and `AddPartitionsToTxnResponse.results_by_topic_v3_and_below`.
    """

    name: str = string("0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult, "0+"
    )


class AddPartitionsToTxnResult(Struct):
    """An element of `AddPartitionsToTxnResponse.results_by_transaction`."""

    transactional_id: str = string("4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, "4+")


class AddPartitionsToTxnResponse(Message, api_key=24, versions="0-5", flexible="3+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "0-3"
    )
