"""Asking a starting server whether it is ready, without ever waiting for it.

Standard library only: runs under the shim's interpreter (Python 3.10 and newer)."""
# ruff: noqa: SIM105 - contextlib is memory in every shim

from __future__ import annotations

import _socket  # `socket` adds half a megabyte of enums to every shim
import os
import select
import time

from engine_ctl import tls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PATIENCE_S = 2.0
_ANY = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "localhost": "127.0.0.1", "::": "::1"}
_FLAGS = _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC


class Probe:
    """One readiness address: `http[s]://HOST[:PORT]/PATH` and `http[s]unix://SOCKET/PATH` (the
    socket's path percent-encoded) are ready when they answer 200, `unix:PATH` and
    `tcp://HOST:PORT` when they accept a connection. Whoever signed a certificate, it is taken.
    Each step takes no time; an attempt is given up after 2 s."""

    def __init__(self, url: str) -> None:
        self._socket: _socket.socket | None = None
        self._deadline = 0.0
        self._reply = b""
        self._sent = False
        self._events = select.POLLOUT
        self._tls = url.startswith("https")
        self._wrapped = False
        self._address: str | tuple[str, int]
        self._request = b""
        if url.startswith("unix:"):
            self._family, self._address = _socket.AF_UNIX, url[5:]
            return
        scheme, _, rest = url.partition("://")
        place, _, path = rest.partition("/")
        if scheme in ("httpunix", "httpsunix"):
            self._family, self._address = _socket.AF_UNIX, _unquoted(place)
            place = "localhost"
        else:
            host, port = _split(place)
            if scheme not in ("http", "https", "tcp") or not port:
                raise ValueError(f"cannot ask {url!r} for readiness: use http://HOST:PORT/PATH")
            host = _ANY.get(host, host)
            self._family = _socket.AF_INET6 if ":" in host else _socket.AF_INET
            self._address = (host, port)
        if scheme != "tcp":
            self._request = (
                f"GET /{path} HTTP/1.1\r\nHost: {place}\r\nUser-Agent: stoker\r\n"
                "Connection: close\r\n\r\n"
            ).encode()

    @property
    def address(self) -> tuple[str, int] | None:
        """(host, port) that is asked; None for a Unix socket."""
        return None if isinstance(self._address, str) else self._address

    def step(self) -> bool:
        """Go on with the present attempt or begin one. True once the server is ready."""
        try:
            if self._socket is None:
                self._begin()
            ready = self._advance()
        except OSError:
            ready = False
            self.close()
        if ready or (self._socket is not None and time.monotonic() > self._deadline):
            self.close()
        return ready

    def waits_for(self) -> tuple[int, int] | None:
        """(file descriptor, poll events) with which the present attempt goes on."""
        if self._socket is None:
            return None
        return self._socket.fileno(), self._events

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _begin(self) -> None:
        self._socket = _socket.socket(self._family, _FLAGS)
        self._deadline = time.monotonic() + PATIENCE_S
        self._reply = b""
        self._sent = self._wrapped = False
        self._events = select.POLLOUT
        try:
            self._socket.connect(self._address)
        except BlockingIOError:
            pass

    def _advance(self) -> bool:
        assert self._socket is not None
        try:
            if not self._sent:
                self._socket.getpeername()
                if not self._request:
                    return True
                if self._tls:
                    self._shake_hands()
                self._socket.send(self._request)
                self._sent = True
                self._events = select.POLLIN
            while len(self._reply) < 12:
                chunk = self._socket.recv(64)
                if not chunk:
                    break
                self._reply += chunk
        except BlockingIOError:
            return False
        except OSError as error:
            if type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError"):
                wants_read = type(error).__name__ == "SSLWantReadError"
                self._events = select.POLLIN if wants_read else select.POLLOUT
                return False
            if error.errno == 107 and not self._sent and not self._failed():  # ENOTCONN: not yet
                return False
            raise
        self.close()
        return self._reply[:5] == b"HTTP/" and self._reply[8:12] == b" 200"

    def _shake_hands(self) -> None:
        """Raises OSError: not yet, or never."""
        made: Any = self._socket
        if not self._wrapped:
            context = tls.unverified()
            self._socket = made = context.wrap_socket(made, do_handshake_on_connect=False)
            self._wrapped = True
        made.do_handshake()

    def _failed(self) -> bool:
        assert self._socket is not None
        return bool(self._socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR))


def _split(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":") if not place.endswith("]") else (place, "", "80")
    if not host:
        host, port = place, "80"
    return host.strip("[]"), int(port) if port.isdecimal() else 0


def _unquoted(text: str) -> str:
    """`urllib.parse.unquote`, which is memory in every shim."""
    first, *rest = text.split("%")
    data = first.encode()
    for part in rest:
        data += bytes((int(part[:2], 16),)) + part[2:].encode()
    return os.fsdecode(data)
