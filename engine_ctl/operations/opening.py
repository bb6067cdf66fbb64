"""Requests to this machine's own engines: without a proxy, over TLS whoever signed their
certificate, and over a Unix socket.

A base is `http[s]://HOST:PORT`, or `http[s]unix://PATH` with the path percent-encoded."""

from __future__ import annotations

import http.client
import socket
import urllib.error
import urllib.request
from functools import partial

from engine_ctl import tls

# What opening a request, reading its answer and decoding that raise where there is no answer, or
# one that is cut off or no HTTP.
UNANSWERED = (OSError, http.client.HTTPException, ValueError, RecursionError)


def opener(base: str) -> urllib.request.OpenerDirector:
    """What opens requests to `base`."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if base.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=tls.unverified()))
    elif "unix:" in base:
        handlers.append(_UnixHandler())
    return urllib.request.build_opener(*handlers)


def refusal(error: urllib.error.HTTPError, most: int) -> bytes:
    """The first `most` bytes that the server gave as its reason, where they can be read."""
    try:
        return error.read(most)
    except UNANSWERED:
        return b""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, secure: bool, host: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path, self._secure = path, secure

    def connect(self) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(self.timeout)
            made.connect(self._path)
            self.sock = tls.unverified().wrap_socket(made) if self._secure else made
        except BaseException:
            made.close()
            raise


class _UnixHandler(urllib.request.AbstractHTTPHandler):
    def httpunix_request(self, request: urllib.request.Request) -> urllib.request.Request:
        request.add_unredirected_header("Host", "localhost")
        return self.do_request_(request)

    def httpunix_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        # urllib has decoded the path already.
        secure = request.type == "httpsunix"
        return self.do_open(partial(_UnixConnection, request.host, secure), request)

    httpsunix_request = httpunix_request
    httpsunix_open = httpunix_open
