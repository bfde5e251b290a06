"""The Kafka protocol, sans-IO: bytes to typed messages and back.

Messages are declared one file per API (`odradek.wire.api.a00_produce` and so on), each with its
versions and their history in the docstring. A class stands for all versions of a message:

    >>> from odradek.wire.api.a03_metadata import MetadataRequest, MetadataRequestTopic
    >>> request = MetadataRequest(topics=[MetadataRequestTopic(name="events")])
    >>> request.allow_auto_topic_creation            # Kafka's default
    True

A client writes the parts of a request frame to its connection:

    >>> from odradek.wire import *
    >>> parts = encode_request(request, version=12, correlation_id=7, client_id="me")
    >>> received = bytearray().join(parts)

A broker finds frames in its receive buffer, reads the header, decides, and decodes:

    >>> end = frame_at(received, 0, len(received), max_size=32 << 20)
    >>> view = memoryview(received)[4:end]
    >>> header = decode_request_header(view)
    >>> header.api_key, header.api_version, header.correlation_id, header.client_id
    (3, 12, 7, 'me')
    >>> API[header.api_key].name
    'Metadata'
    >>> decode_request(header, view).topics[0].name
    'events'

and answers with the parts of a response frame:

    >>> from odradek.wire.api.a03_metadata import MetadataResponse
    >>> answer = MetadataResponse(cluster_id="c1")
    >>> parts = encode_response(header.api_key, header.api_version, header.correlation_id, answer)

which the client reads:

    >>> frame = memoryview(b"".join(parts))[4:]
    >>> decode_correlation_id(frame)
    7
    >>> decode_response(MetadataResponse, 12, frame).cluster_id
    'c1'

Values: uuids are `uuid.UUID`, "no id" is `NULL_UUID`; nullable strings, arrays and structs are
None when null; arrays are lists; a tagged struct that is absent is None. Fields that a version
lacks have their default after decoding, and must have it (or be ignorable) when encoding.

Records are never copied. Decoding gives slices of the receive buffer: keep the buffer unchanged
as long as they are used. Encoding puts a records value into the list of parts as it is; it may
be bytes-like or any object whose `len` is its size in bytes (a range of a file), which the
transport then sends by its own means. Only bytes-like values below 512 bytes are merged into
their neighbours.

What can go wrong: decoding raises MalformedMessage for any bytes that are not exactly one
message, and nothing else, and takes memory in proportion to the bytes that are there, whatever
they claim; a request may have 1,048,576 array elements in all. UnsupportedVersion is for an API
or version that is not in `API`. Encoding raises ValueError naming the field.
"""

from odradek.wire.codec import (
    Part,
    RequestHeader,
    decode,
    decode_correlation_id,
    decode_request,
    decode_request_header,
    decode_response,
    encode,
    encode_request,
    encode_response,
)
from odradek.wire.framing import frame_at
from odradek.wire.registry import API, Api
from odradek.wire.schema import NULL_UUID, Message, Records, Struct

__all__ = [
    "API",
    "NULL_UUID",
    "Api",
    "Message",
    "Part",
    "Records",
    "RequestHeader",
    "Struct",
    "decode",
    "decode_correlation_id",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "encode",
    "encode_request",
    "encode_response",
    "frame_at",
]
