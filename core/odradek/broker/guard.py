"""Where the contracts' errors become Kafka's, for requests that change the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from odradek.broker.waiting import HangUp
from odradek.contracts.coordinator import (
    Conflict,
    CoordinatorError,
    Denied,
    SessionLost,
    Unavailable,
    Uncertain,
)
from odradek.contracts.storage import StorageError
from odradek.errors import ErrorCode, KafkaError

__all__ = ["as_kafka_error", "check_count", "told"]

MESSAGE_LIMIT = 1000

ASKED_LIMIT = 50_000
"""What one request may ask for: a byte that names a group makes some 300 in the answer.

An administrator's tool asks for all groups of a broker at once, some thousands.
"""


def told(error: KafkaError) -> str:
    """What a response says of an error. Cut: it may quote the client, and has to be encoded."""
    text = error.detail or error.code.text
    return text if len(text) <= MESSAGE_LIMIT else f"{text[:MESSAGE_LIMIT]}..."


def check_count(asked: int) -> None:
    """Raise HangUp when a request asks for more groups, or partitions, than anybody has."""
    if asked > ASKED_LIMIT:
        raise HangUp(f"a request asks for {asked} answers, more than {ASKED_LIMIT}")


@asynccontextmanager
async def as_kafka_error() -> AsyncIterator[None]:
    """Turn errors of the coordinator and the store into a KafkaError that clients understand."""
    try:
        yield
    except Uncertain as error:
        # Nobody knows whether it was applied: clients ask again and see.
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
    except (Unavailable, SessionLost, Conflict) as error:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
    except Denied as error:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, str(error)) from error
    except CoordinatorError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    except StorageError as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
