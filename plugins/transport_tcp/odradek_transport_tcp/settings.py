"""The settings of the TCP transport, for its listeners and its outgoing connections alike."""

from __future__ import annotations

from attrs import frozen

from odradek.config import setting

__all__ = ["TcpSettings"]


@frozen(kw_only=True)
class TcpSettings:
    """How sockets are made; the defaults suit a local network."""

    no_delay: bool = setting(
        True,
        doc="Send small messages at once (TCP_NODELAY). False lets the kernel hold them back for"
        " up to 40 ms in the hope of more.",
    )
    send_buffer_bytes: int = setting(
        -1,
        minimum=-1,
        maximum=1 << 30,
        kafka="socket.send.buffer.bytes",
        doc="Size of each connection's send buffer in the kernel (SO_SNDBUF); -1 lets the kernel"
        " adapt it to the connection, which is nearly always better.",
    )
    receive_buffer_bytes: int = setting(
        -1,
        minimum=-1,
        maximum=1 << 30,
        kafka="socket.receive.buffer.bytes",
        doc="Size of each connection's receive buffer in the kernel (SO_RCVBUF); -1 lets the"
        " kernel adapt it to the connection, which is nearly always better.",
    )
    backlog: int = setting(
        4096,
        minimum=1,
        maximum=65535,
        kafka="socket.listen.backlog.size",
        doc="Connections that may wait to be accepted; beyond that the kernel makes clients try"
        " again. Linux cuts it to net.core.somaxconn without a word.",
    )
    keepalive: bool = setting(
        True,
        doc="Have the kernel probe idle connections (SO_KEEPALIVE), so that a peer that vanished"
        " without a word is noticed.",
    )
    keepalive_idle_s: int = setting(
        60,
        minimum=1,
        maximum=32767,
        doc="Seconds without traffic before the first probe (Linux). After three unanswered, 10 s"
        " apart, the connection is lost.",
    )
    reuse_port: bool = setting(
        False,
        doc="Let several processes listen on one address (SO_REUSEPORT); the kernel spreads"
        " connections over them. Off, a second broker on the same port is refused.",
    )
    linger_ms: int = setting(
        1000,
        minimum=0,
        maximum=60_000,
        doc="How long closing waits for a peer that is still sending, or has not taken what was"
        " sent: without it the kernel would reset the connection and drop the last responses.",
    )
