"""Every error of Odradek's own, and the table of Kafka's error codes.

Three families, told apart by who has to act:

* `OdradekError` and its children here: something outside the program is not as it should be
  (configuration, a plugin, bytes that arrived); the message says what and what to do.
* the errors of a contract (`odradek.contracts.storage`, `.coordinator`, `.transport`), each
  defined beside the contract whose promise it belongs to.
* `KafkaError`: an error that has a code on the wire, to be answered to a client or received
  from a broker.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "CorruptBatch",
    "ErrorCode",
    "InvalidRecord",
    "InvalidTimestamp",
    "KafkaError",
    "MalformedMessage",
    "OdradekError",
    "UnsupportedVersion",
]


class OdradekError(Exception):
    """Base of every error that Odradek raises on purpose."""


class MalformedMessage(OdradekError):
    """Bytes that are not a message of the Kafka protocol: the sender is at fault.

    Raised while decoding. The connection the bytes came from cannot be trusted to be in step
    any more and is closed; nothing else is affected.
    """


class UnsupportedVersion(OdradekError):
    """A well-formed request for an API or a version that is not offered.

    `api_key` and `api_version` name it; the sender ignored what ApiVersions told it.
    """

    def __init__(self, api_key: int, api_version: int) -> None:
        super().__init__(f"API key {api_key} is not offered at version {api_version}")
        self.api_key = api_key
        self.api_version = api_version


class ErrorCode(IntEnum):
    """Kafka's error codes (Apache Kafka, `Errors.java`), with what a client may do about each.

    `code.retriable` says whether the same request may succeed later without a change;
    `code.text` is one sentence for a human.
    """

    retriable: bool
    text: str

    def __new__(cls, code: int, retriable: bool = False, text: str = "") -> ErrorCode:
        """Build one row of the table."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.text = text
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "The server met an error it did not expect."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The offset is outside of the range the partition holds."
    CORRUPT_MESSAGE = 2, True, "The batch fails its CRC, has an invalid size or is malformed."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "This server does not host this topic-partition."
    INVALID_FETCH_SIZE = 4, False, "The requested fetch size is invalid."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, True, "This broker is not the leader of the partition."
    REQUEST_TIMED_OUT = 7, True, "The request timed out."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica is not available."
    MESSAGE_TOO_LARGE = 10, False, "The batch is larger than max.message.bytes of the topic."
    STALE_CONTROLLER_EPOCH = 11, False, "The controller moved to another broker."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata field of the offset is too large."
    NETWORK_EXCEPTION = 13, True, "The server disconnected before a response was received."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is loading."
    COORDINATOR_NOT_AVAILABLE = 15, True, "The coordinator is not available."
    NOT_COORDINATOR = 16, True, "This broker is not the coordinator asked for."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic name or the request for it is invalid."
    RECORD_LIST_TOO_LARGE = 18, False, "The batch is larger than a segment may be."
    NOT_ENOUGH_REPLICAS = 19, True, "Fewer in-sync replicas than min.insync.replicas."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "Written, but to fewer in-sync replicas."
    INVALID_REQUIRED_ACKS = 21, False, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, False, "The group generation is not valid."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member's protocols do not fit the group's."
    INVALID_GROUP_ID = 24, False, "The group id is invalid."
    UNKNOWN_MEMBER_ID = 25, False, "The coordinator does not know this member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside the allowed range."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing: rejoin."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The commit does not fit the size limit."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Not authorised for the topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Not authorised for the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Not authorised for the cluster."
    INVALID_TIMESTAMP = 32, False, "The timestamp of a record is out of the allowed range."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request is not valid in this state of SASL."
    UNSUPPORTED_VERSION = 35, False, "The version of the API is not supported."
    TOPIC_ALREADY_EXISTS = 36, False, "A topic with this name already exists."
    INVALID_PARTITIONS = 37, False, "The number of partitions is invalid."
    INVALID_REPLICATION_FACTOR = 38, False, "The replication factor is invalid."
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The replica assignment is invalid."
    INVALID_CONFIG = 40, False, "The configuration is invalid."
    NOT_CONTROLLER = 41, True, "This broker is not the controller."
    INVALID_REQUEST = 42, False, "The request cannot be honoured as it was put."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The message format does not support this."
    POLICY_VIOLATION = 44, False, "The request violates a policy."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The sequence number is not the next one."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The sequence number was seen before."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is old."
    INVALID_TXN_STATE = 48, False, "The transaction is in an invalid state for this."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id does not belong to this id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is over the maximum."
    CONCURRENT_TRANSACTIONS = 51, True, "The producer has another transaction going on."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "The transaction coordinator was fenced."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Not authorised for transactional id."
    SECURITY_DISABLED = 54, False, "Security features are disabled."
    OPERATION_NOT_ATTEMPTED = 55, False, "The operation was not attempted."
    KAFKA_STORAGE_ERROR = 56, True, "The storage of the partition met an error."
    LOG_DIR_NOT_FOUND = 57, False, "The log directory is not known here."
    SASL_AUTHENTICATION_FAILED = 58, False, "SASL authentication failed."
    UNKNOWN_PRODUCER_ID = 59, False, "Nothing is known of this producer id."
    REASSIGNMENT_IN_PROGRESS = 60, False, "A reassignment is going on."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "The delegation token is not known."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "The principal is not the token's owner."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "Token requests are not allowed here."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Not authorised for the token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "The type of principal is not supported."
    NON_EMPTY_GROUP = 68, False, "The group is not empty."
    GROUP_ID_NOT_FOUND = 69, False, "The group does not exist."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "The fetch session is not known."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The epoch of the fetch session is wrong."
    LISTENER_NOT_FOUND = 72, True, "The leader has no listener of this name."
    TOPIC_DELETION_DISABLED = 73, False, "Deleting topics is disabled."
    FENCED_LEADER_EPOCH = 74, True, "The leader epoch in the request is old."
    UNKNOWN_LEADER_EPOCH = 75, True, "The leader epoch in the request is newer than ours."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The compression is not supported."
    STALE_BROKER_EPOCH = 77, False, "The broker epoch changed."
    OFFSET_NOT_AVAILABLE = 78, True, "The new leader's high watermark has not caught up yet."
    MEMBER_ID_REQUIRED = 79, False, "Join again with the member id that was given."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group is full."
    FENCED_INSTANCE_ID = 82, False, "Another member took over this group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica may become the leader."
    ELECTION_NOT_NEEDED = 84, True, "The partition needs no election."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "No reassignment is going on."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group is subscribed to the topic."
    INVALID_RECORD = 87, False, "A record failed validation."
    UNSTABLE_OFFSET_COMMIT = 88, True, "Some offsets wait for their transaction to end."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "The throttling quota is exceeded."
    PRODUCER_FENCED = 90, False, "A newer producer has the same transactional id."
    RESOURCE_NOT_FOUND = 91, False, "The resource does not exist."
    DUPLICATE_RESOURCE = 92, False, "The resource exists already."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential is not acceptable."
    INCONSISTENT_VOTER_SET = 94, False, "The voter sets differ."
    INVALID_UPDATE_VERSION = 95, False, "The update version is invalid."
    FEATURE_UPDATE_FAILED = 96, False, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The principal could not be read."
    SNAPSHOT_NOT_FOUND = 98, False, "The snapshot does not exist."
    POSITION_OUT_OF_RANGE = 99, False, "The position is outside of the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "This server does not host a topic of this id."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "The broker id is in use."
    BROKER_ID_NOT_REGISTERED = 102, False, "The broker id is not registered."
    INCONSISTENT_TOPIC_ID = 103, True, "The topic id does not fit the log's."
    INCONSISTENT_CLUSTER_ID = 104, False, "The cluster id does not fit."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "The transactional id is not known."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The session mixes topic ids and names."
    INELIGIBLE_REPLICA = 107, False, "The replica may not join the in-sync set."
    NEW_LEADER_ELECTED = 108, False, "The in-sync set changed the leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset moved to tiered storage."
    FENCED_MEMBER_EPOCH = 110, False, "The member epoch is fenced: rejoin."
    UNRELEASED_INSTANCE_ID = 111, False, "The instance id is still in use."
    UNSUPPORTED_ASSIGNOR = 112, False, "The assignor is not supported by the group."
    STALE_MEMBER_EPOCH = 113, False, "The member epoch is old: use the newest one."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request came to the wrong kind of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "The kind of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, False, "The controller id is not known."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The subscription id is not known."
    TELEMETRY_TOO_LARGE = 118, False, "The pushed metrics are too large."
    INVALID_REGISTRATION = 119, False, "The registration is invalid."
    TRANSACTION_ABORTABLE = 120, False, "The transaction must be aborted."
    INVALID_RECORD_STATE = 121, False, "The record is in the wrong state for this."
    SHARE_SESSION_NOT_FOUND = 122, True, "The share session is not known."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The epoch of the share session is wrong."
    FENCED_STATE_EPOCH = 124, False, "The share coordinator's state epoch is old."
    INVALID_VOTER_KEY = 125, False, "The voter key does not fit."
    DUPLICATE_VOTER = 126, False, "The voter exists already."
    VOTER_NOT_FOUND = 127, False, "The voter does not exist."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is invalid."
    REBOOTSTRAP_REQUIRED = 129, False, "The client must start again from its bootstrap list."

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """Return the row of `code`, or UNKNOWN_SERVER_ERROR for one from a newer Kafka."""
        try:
            return cls(code)
        except ValueError:
            return cls.UNKNOWN_SERVER_ERROR


class KafkaError(OdradekError):
    """An error with a code on the wire: answered to a client, or received from a broker.

    `code` is the row of the table, `detail` what this case adds (sent to the client where the
    response has a field for it).
    """

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        super().__init__(f"{code.name}: {detail or code.text}")
        self.code = code
        self.detail = detail

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later without a change."""
        return self.code.retriable


class CorruptBatch(KafkaError):
    """A record batch is damaged: bad CRC, magic, length or structure (CORRUPT_MESSAGE)."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, detail)


class InvalidRecord(KafkaError):
    """A whole record batch that breaks a rule of the log (INVALID_RECORD)."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(ErrorCode.INVALID_RECORD, detail)


class InvalidTimestamp(KafkaError):
    """A timestamp outside of what the topic allows (INVALID_TIMESTAMP)."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(ErrorCode.INVALID_TIMESTAMP, detail)
