"""Requests to this machine's own engines: without a proxy, over TLS whoever signed their
certificate, and over a Unix socket.

A base is `http[s]://HOST:PORT`, or `http[s]unix://PATH` with the path percent-encoded."""

from __future__ import annotations

import http.client
import socket
import urllib.request
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


def opener(base: str) -> urllib.request.OpenerDirector:
    """What opens requests to `base`."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if base.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=_unverified()))
    elif "unix:" in base:
        handlers.append(_UnixHandler())
    return urllib.request.build_opener(*handlers)


def _unverified() -> ssl.SSLContext:
    """It is our own engine, on this machine, often with a certificate of its own."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, tls: bool, host: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path, self._tls = path, tls

    def connect(self) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(self.timeout)
            made.connect(self._path)
            self.sock = _unverified().wrap_socket(made) if self._tls else made
        except BaseException:
            made.close()
            raise


class _UnixHandler(urllib.request.AbstractHTTPHandler):
    def httpunix_request(self, request: urllib.request.Request) -> urllib.request.Request:
        request.add_unredirected_header("Host", "localhost")
        return self.do_request_(request)

    def httpunix_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        # urllib has decoded the path already.
        tls = request.type == "httpsunix"
        return self.do_open(partial(_UnixConnection, request.host, tls), request)

    httpsunix_request = httpunix_request
    httpsunix_open = httpunix_open
