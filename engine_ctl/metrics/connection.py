"""One kept-alive HTTP/1.1 connection that is read without ever blocking.

The sampling thread asks many engines for two small pages each second. A client library costs
about 1 ms a request and 110 ms to import; this costs 0.1 ms and nothing.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
from dataclasses import dataclass
from typing import Any

from engine_ctl import tls

MAX_BODY = 32 << 20


class HttpError(Exception):
    """The other side is not there, hung up, or does not speak HTTP. `str` is one or two words."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine listens. A wildcard address is reached through loopback."""

    host: str
    port: int
    tls: bool = False
    uds: str | None = None

    def address(self) -> tuple[int, Any]:
        """Family and address to connect to. Raises OSError for a name that does not resolve."""
        if self.uds is not None:
            return socket.AF_UNIX, self.uds
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "::": "::1"}.get(
            self.host, self.host
        ).strip("[]")
        with contextlib.suppress(OSError):
            socket.inet_pton(socket.AF_INET, host)
            return socket.AF_INET, (host, self.port)
        with contextlib.suppress(OSError):
            socket.inet_pton(socket.AF_INET6, host)
            return socket.AF_INET6, (host, self.port)
        found = socket.getaddrinfo(host, self.port, type=socket.SOCK_STREAM)[0]
        return found[0], found[4]


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes


class Connection:
    """Sends one GET at a time. `step` does what can be done now and says what to wait for."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        family, address = endpoint.address()
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        sock.setblocking(False)
        self._sock: socket.socket = sock
        self._connecting = True
        self._handshaking = endpoint.tls
        self._out = b""
        self._buffer = bytearray()
        self._parser: _ResponseParser | None = None
        self.fresh = True
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            raise HttpError(_words(code))

    def fileno(self) -> int:
        return self._sock.fileno()

    def get(self, path: str) -> None:
        """Start a request. The last one must have been answered."""
        name = self.endpoint.host or "localhost"
        host = f"[{name}]" if ":" in name else name
        self._out = (
            f"GET {path} HTTP/1.1\r\nHost: {host}:{self.endpoint.port}\r\n"
            "User-Agent: stoker\r\nAccept: */*\r\n\r\n"
        ).encode()
        self._parser = _ResponseParser()

    def step(self) -> Response | int:
        """The response when it is complete, else the selector events to wait for.

        Raises HttpError."""
        try:
            return self._step()
        except OSError as error:
            raise HttpError(_words(error.errno)) from None

    @property
    def unanswered(self) -> bool:
        """True while nothing of the response has arrived."""
        return not self._buffer

    @property
    def reusable(self) -> bool:
        return self._parser is not None and self._parser.done and not self._parser.closes

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()

    def _step(self) -> Response | int:
        if self._connecting:
            code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise HttpError(_words(code))
            try:
                self._sock.getpeername()
            except OSError as error:
                if error.errno == errno.ENOTCONN:
                    return selectors.EVENT_WRITE
                raise
            self._connecting = False
            if self._handshaking:
                self._sock = tls.unverified().wrap_socket(
                    self._sock,
                    do_handshake_on_connect=False,
                    server_hostname=self.endpoint.host or None,
                )
        if self._handshaking:
            wait = self._handshake()
            if wait:
                return wait
            self._handshaking = False
        if self._out:
            wait = self._send()
            if wait:
                return wait
        return self._receive()

    def _handshake(self) -> int:
        import ssl

        assert isinstance(self._sock, ssl.SSLSocket)
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE
        return 0

    def _send(self) -> int:
        try:
            sent = self._sock.send(self._out)
        except OSError as error:
            if _would_block(error):
                return selectors.EVENT_WRITE
            raise
        self._out = self._out[sent:]
        return selectors.EVENT_WRITE if self._out else 0

    def _receive(self) -> Response | int:
        parser = self._parser
        assert parser is not None
        while True:
            try:
                data = self._sock.recv(262144)
            except OSError as error:
                if _would_block(error):
                    return selectors.EVENT_READ
                raise
            self._buffer += data
            response = parser.feed(self._buffer, ended=not data)
            if response is not None:
                self._buffer.clear()
                self.fresh = False
                return response
            if not data:
                raise HttpError("hung up")
            if len(self._buffer) > MAX_BODY:
                raise HttpError("answer too large")


class _ResponseParser:
    """Status line, headers, and a body by length, in chunks, or up to the end."""

    def __init__(self) -> None:
        self.done = False
        self.closes = False
        self._status = 0
        self._length: int | None = None
        self._chunked = False
        self._start = -1
        self._next_chunk = 0
        self._chunks: list[bytes] = []

    def feed(self, buffer: bytearray, ended: bool) -> Response | None:
        if self._start < 0 and not self._read_head(buffer):
            return None
        body = self._read_body(buffer, ended)
        if body is None:
            return None
        self.done = True
        return Response(self._status, body)

    def _read_head(self, buffer: bytearray) -> bool:
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(buffer) > 65536 or (len(buffer) >= 5 and not buffer.startswith(b"HTTP/")):
                raise HttpError("not HTTP")
            return False
        lines = bytes(buffer[:end]).split(b"\r\n")
        try:
            version, status = lines[0].split(b" ", 2)[:2]
            self._status = int(status)
        except ValueError:
            raise HttpError("not HTTP") from None
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip().lower()
        connection = headers.get(b"connection", b"")
        self.closes = connection == b"close" or (
            version == b"HTTP/1.0" and connection != b"keep-alive"
        )
        self._chunked = b"chunked" in headers.get(b"transfer-encoding", b"")
        length = headers.get(b"content-length")
        if length is not None and not self._chunked:
            if not length.isdigit() or int(length) > MAX_BODY:
                raise HttpError("not HTTP" if not length.isdigit() else "answer too large")
            self._length = int(length)
        elif self._status in (204, 304):
            self._length = 0
        self._start = self._next_chunk = end + 4
        return True

    def _read_body(self, buffer: bytearray, ended: bool) -> bytes | None:
        if self._chunked:
            return self._read_chunks(buffer)
        if self._length is not None:
            if len(buffer) < self._start + self._length:
                return None
            return bytes(buffer[self._start : self._start + self._length])
        self.closes = True
        return bytes(buffer[self._start :]) if ended else None

    def _read_chunks(self, buffer: bytearray) -> bytes | None:
        while True:
            line_end = buffer.find(b"\r\n", self._next_chunk)
            if line_end < 0:
                return None
            try:
                size = int(bytes(buffer[self._next_chunk : line_end]).split(b";")[0], 16)
            except ValueError:
                raise HttpError("not HTTP") from None
            if not 0 <= size <= MAX_BODY:
                raise HttpError("answer too large")
            start = line_end + 2
            if size == 0:
                # Trailers, if any, end with an empty line.
                if buffer[start : start + 2] == b"\r\n" or buffer.find(b"\r\n\r\n", start) >= 0:
                    return b"".join(self._chunks)
                return None
            if len(buffer) < start + size + 2:
                return None
            self._chunks.append(bytes(buffer[start : start + size]))
            self._next_chunk = start + size + 2


def _would_block(error: OSError) -> bool:
    if isinstance(error, BlockingIOError):
        return True
    # ssl.SSLWantReadError and SSLWantWriteError, without importing ssl for plain sockets.
    return type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError")


def _words(code: int | None) -> str:
    known = {
        errno.ECONNREFUSED: "refused",
        errno.ENOENT: "refused",
        errno.ECONNRESET: "hung up",
        errno.EPIPE: "hung up",
        errno.EHOSTUNREACH: "unreachable",
        errno.ENETUNREACH: "unreachable",
        errno.ETIMEDOUT: "timed out",
    }
    return known.get(code or 0, errno.errorcode.get(code or 0, "failed"))
