"""Which headers are passed on: all but those about one connection (RFC 9110, section 7.6.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multidict import CIMultiDict

OF_ONE_CONNECTION = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The end-to-end headers, repeated ones and their order kept."""
    named: set[str] = set()
    for name, value in headers.items():
        if name.lower() == "connection":
            named |= {word.strip().lower() for word in value.split(",")}
    dropped = OF_ONE_CONNECTION | named
    return CIMultiDict(
        (name, value) for name, value in headers.items() if name.lower() not in dropped
    )


def to_engine(headers: Mapping[str, str], client: str | None) -> CIMultiDict[str]:
    """Headers of the request as the engine gets it; it learns the client's address."""
    kept = passed_on(headers)
    kept.popall("Expect", None)
    if client:
        before: Any = ", ".join(kept.popall("X-Forwarded-For", []))
        kept["X-Forwarded-For"] = f"{before}, {client}" if before else client
    return kept
