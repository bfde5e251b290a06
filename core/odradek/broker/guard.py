"""Where the contracts' errors become Kafka's, for requests that change the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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

__all__ = ["as_kafka_error", "told"]

MESSAGE_LIMIT = 1000


def told(error: KafkaError) -> str:
    """What a response says of an error. Cut: it may quote the client, and has to be encoded."""
    text = error.detail or error.code.text
    return text if len(text) <= MESSAGE_LIMIT else f"{text[:MESSAGE_LIMIT]}..."


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
