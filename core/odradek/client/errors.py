"""What the client raises besides `odradek.errors.KafkaError` (an answer with an error code).

Told apart by what the caller knows afterwards: whether the broker may have acted on the request.
"""

from __future__ import annotations

from odradek.errors import ErrorCode, KafkaError, OdradekError

__all__ = [
    "ClientClosed",
    "ClientError",
    "DeliveryTimedOut",
    "Disconnected",
    "NotOffered",
    "NotReachable",
    "OutcomeUnknown",
    "RequestTimedOut",
    "is_retriable",
    "is_stale",
    "raise_for",
]


# Answers that say the image is wrong: whoever gets one asks for a newer image and tries again.
_STALE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


class ClientError(OdradekError):
    """Base of the client's own errors; never raised itself."""


class NotReachable(ClientError):
    """No broker could be connected to: the address is wrong, or nobody listens on it (yet).

    The request was not sent. The message names every address tried, and the cause of each.
    """


class Disconnected(ClientError):
    """The connection ended before the answer came.

    `sent` tells whether the request, or a part of it, had left: then the broker may have acted
    on it, and only an idempotent request may simply be repeated.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class RequestTimedOut(Disconnected):
    """No answer within the request's timeout.

    Answers come in the order of the requests, so everything behind this one would wait as long:
    the connection is given up, and the other requests on it raise Disconnected.
    """


class NotOffered(ClientError):
    """The broker offers no version of this API that the client speaks; nothing was sent."""


class ClientClosed(ClientError):
    """The client, producer or reader was closed by its owner."""


class DeliveryTimedOut(ClientError):
    """A record was not acknowledged within the delivery timeout.

    Where a request that carried it had been sent, it may be in the log all the same.
    """


class OutcomeUnknown(ClientError):
    """A record was sent, no answer came, and repeating it might write it twice.

    An idempotent producer repeats a request for as long as the broker can tell it from a new
    one. Here it cannot any more: the broker has forgotten the producer, or records before this
    one were given up. It may be in the log or not.
    """


def is_retriable(error: BaseException) -> bool:
    """Whether the same request may succeed later without a change, outcome aside."""
    if isinstance(error, KafkaError):
        return error.retriable
    return isinstance(error, Disconnected | NotReachable)


def is_stale(error: BaseException) -> bool:
    """Whether `error` is a reason to fetch metadata before trying again."""
    if isinstance(error, KafkaError):
        return error.code in _STALE
    return isinstance(error, Disconnected | NotReachable)


def raise_for(code: int, detail: str | None = None) -> None:
    """Raise KafkaError unless `code` is NONE."""
    if code:
        raise error_of(code, detail)


def error_of(code: int, detail: str | None = None) -> KafkaError:
    """Return the KafkaError of a code other than NONE; unknown codes keep their number."""
    known = ErrorCode.of(code)
    if known.value != code:
        detail = f"error code {code}, unknown to this client{': ' + detail if detail else ''}"
    return KafkaError(known, detail or "")
