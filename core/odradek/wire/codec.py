"""Encoding and decoding whole messages, requests and responses with their headers.

A frame is a size (int32, without itself), a header and a body. Requests carry header version 1,
or 2 where the body is flexible; responses version 0, or 1 where the body is flexible, except
ApiVersions, whose responses always have version 0 (KIP-511).

Codecs are compiled when a (message, version) is first used, once per process; two threads that
come at the same time both compile, and either result is kept.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, overload

from odradek.errors import MalformedMessage, UnsupportedVersion
from odradek.wire.primitives import LAST_LENGTH, LAST_TEXT, skip_tagged_fields, uvarint
from odradek.wire.registry import API
from odradek.wire.schema import Message

if TYPE_CHECKING:
    from collections.abc import Sized

    from odradek.types import Buffer
    from odradek.wire.decoder import Decode
    from odradek.wire.encoder import Encode

__all__ = [
    "Part",
    "RequestHeader",
    "decode",
    "decode_correlation_id",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "encode",
    "encode_request",
    "encode_response",
]

M = TypeVar("M", bound=Message)

Part: TypeAlias = "Buffer | Sized"
"""What a transport sends next: bytes, or the records value a message was given, as it was."""

API_VERSIONS = 18

_HEADER = Struct("!hhih")
_SIZE_AND_ID = Struct("!ii")
_REQUEST_START = Struct("!ihhih")

_new_tuple = tuple.__new__

_encoders: dict[tuple[type[Message], int], Encode] = {}
_decoders: dict[tuple[type[Message], int], Decode] = {}
_request_decoders: dict[int, Decode] = {}  # by api_key << 16 | api_version


class RequestHeader(NamedTuple):
    """The header of a request; the body starts at `body_offset` of the same view."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def encode(message: Message, version: int) -> list[Part]:
    """Encode a body alone: the bytes of `message` at `version`, as parts to send in turn.

    Neighbouring small things share a part. A `records` value of 512 bytes or more, or one that
    is not bytes-like, is a part of its own and the very object that was in the message.

    Raises UnsupportedVersion for a version that is not declared, and ValueError, naming the
    field, for a value that does not fit its type, or that differs from the default where
    `version` has no such field and the field is not ignorable.
    """
    parts: list[Part] = []
    _encoder(type(message), version)(message, bytearray(), parts)
    return parts


def decode(cls: type[M], version: int, view: Buffer, offset: int = 0) -> M:
    """Decode a body alone: a `cls` that reaches from `offset` to the end of `view`.

    Raises UnsupportedVersion for a version that is not declared, and MalformedMessage for
    anything that is not exactly one message.
    """
    message: M = _decoder(cls, version)(view, offset)
    return message


def decode_request_header(view: Buffer) -> RequestHeader:
    """Decode the header of the request in `view`, a frame without its size.

    Any API key and version are accepted, so that the caller can say what it refuses: an
    undeclared key is taken to be not flexible, an undeclared version to be as the nearest
    declared one. Raises MalformedMessage.
    """
    try:
        api_key, version, correlation_id, length = _HEADER.unpack_from(view)
        offset = 10
        if length > 0:
            offset += length
            client_id = str(view[10:offset], "utf-8")
        elif length == 0:
            client_id = ""
        elif length == -1:
            client_id = None
        else:
            raise MalformedMessage(f"request header: client id of length {length}")
        api = API.get(api_key)
        if api is not None and version >= api.flexible_from:
            if view[offset] == 0:
                offset += 1
            else:
                offset = skip_tagged_fields(view, offset)
        elif offset > len(view):
            raise MalformedMessage("request header: it ends early")
    except (struct_error, IndexError):
        raise MalformedMessage("request header: it ends early") from None
    except UnicodeDecodeError:
        raise MalformedMessage("request header: client id that is not UTF-8") from None
    # Not RequestHeader(...): its generated __new__ costs as much as reading the fields.
    return _new_tuple(RequestHeader, (api_key, version, correlation_id, client_id, offset))


def decode_request(header: RequestHeader, view: Buffer) -> Message:
    """Decode the body that follows `header` in the same `view`, usually a memoryview.

    `records` fields are slices of `view`: valid and unchanged only as long as its buffer is.
    Raises UnsupportedVersion for an API or version that is not declared, MalformedMessage for
    anything that is not exactly one message.
    """
    key = header.api_key << 16 | header.api_version
    decoder = _request_decoders.get(key) or _request_decoder(header.api_key, header.api_version)
    message: Message = decoder(view, header.body_offset)
    return message


def encode_response(
    api_key: int, version: int, correlation_id: int, message: Message
) -> list[Part]:
    """Encode a whole response frame: size, header and body, as parts to send in turn.

    The parts are as `encode` says; the first is never a records value. Raises as `encode` does,
    and ValueError when `message` is not a response of `api_key`, or the frame takes 2 GiB.
    """
    cls = type(message)
    if cls.api_key != api_key:
        raise ValueError(f"{cls.__name__} does not answer requests of API key {api_key}")
    flexible = cls.flexible.first <= version and api_key != API_VERSIONS
    head = bytearray(9 if flexible else 8)
    parts: list[Part] = []
    encoder = _encoders.get((cls, version)) or _encoder(cls, version)
    encoder(message, head, parts)
    try:
        _SIZE_AND_ID.pack_into(head, 0, _size(parts) - 4, correlation_id)
    except struct_error:
        raise _unframed(message, version, parts, correlation_id) from None
    return parts


def decode_correlation_id(view: Buffer) -> int:
    """Return which request the response in `view`, a frame without its size, belongs to.

    Raises MalformedMessage when it is shorter than a header.
    """
    if len(view) < 4:
        raise MalformedMessage("response header: it ends early")
    return int.from_bytes(view[:4], "big", signed=True)


@overload
def decode_response(api: int, version: int, view: Buffer) -> Message: ...
@overload
def decode_response(api: type[M], version: int, view: Buffer) -> M: ...
def decode_response(api: int | type[Message], version: int, view: Buffer) -> Message:
    """Decode the response in `view`, a frame without its size, header included.

    `api` is the API key, or the class of the response where the caller knows it. Raises as
    `decode` does.
    """
    if isinstance(api, int):
        if api not in API:
            raise UnsupportedVersion(api, version)
        api = API[api].response
    offset = 4
    if api.flexible.first <= version and api.api_key != API_VERSIONS:
        try:
            offset = skip_tagged_fields(view, offset)
        except IndexError:
            raise MalformedMessage("response header: it ends early") from None
    return decode(api, version, view, offset)


def encode_request(
    message: Message, version: int, correlation_id: int, client_id: str | None = None
) -> list[Part]:
    """Encode a whole request frame: size, header and body, as parts to send in turn.

    Raises as `encode` does.
    """
    client = b"" if client_id is None else client_id.encode()
    if len(client) > LAST_TEXT:
        raise ValueError(f"the client id is longer than {LAST_TEXT} bytes")
    head = bytearray(_REQUEST_START.size)
    head += client
    if message.flexible.has(version):
        head += uvarint(0)
    parts: list[Part] = []
    _encoder(type(message), version)(message, head, parts)
    length = -1 if client_id is None else len(client)
    try:
        _REQUEST_START.pack_into(
            head, 0, _size(parts) - 4, message.api_key, version, correlation_id, length
        )
    except struct_error:
        raise _unframed(message, version, parts, correlation_id) from None
    return parts


def _size(parts: list[Part]) -> int:
    return len(parts[0]) if len(parts) == 1 else sum(map(len, parts))


def _unframed(message: Message, version: int, parts: list[Part], correlation_id: int) -> ValueError:
    what = f"{type(message).__name__} v{version} cannot be framed"
    if _size(parts) - 4 > LAST_LENGTH:
        return ValueError(f"{what}: {_size(parts) - 4} bytes do not fit a frame")
    return ValueError(f"{what}: correlation id {correlation_id!r} is not an integer of 32 bits")


def _encoder(cls: type[Message], version: int) -> Encode:
    try:
        return _encoders[cls, version]
    except KeyError:
        from odradek.wire.encoder import compile_encoder

        _check(cls, version)
        encoder = _encoders[cls, version] = compile_encoder(cls, version)
        return encoder


def _decoder(cls: type[Message], version: int) -> Decode:
    try:
        return _decoders[cls, version]
    except KeyError:
        from odradek.wire.decoder import compile_decoder

        _check(cls, version)
        decoder = _decoders[cls, version] = compile_decoder(cls, version)
        return decoder


def _request_decoder(api_key: int, version: int) -> Decode:
    api = API.get(api_key)
    if api is None or not api.has(version):
        raise UnsupportedVersion(api_key, version)
    decoder = _request_decoders[api_key << 16 | version] = _decoder(api.request, version)
    return decoder


def _check(cls: type[Message], version: int) -> None:
    if not cls.versions.has(version):
        raise UnsupportedVersion(cls.api_key, version)
