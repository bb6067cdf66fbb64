"""Request bodies: kept while they are small, so that they can be sent to a second engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp.web import BaseRequest

KEEP_BYTES = 8 << 20
KEEP_ALL_BYTES = 256 << 20
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Budget:
    """Memory for the kept bodies of all requests together."""

    def __init__(self, size: int = KEEP_ALL_BYTES) -> None:
        self.left = size

    def take(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True

    def give(self, size: int) -> None:
        self.left += size


class Body:
    """The body of one request. Read from the client when it is first sent on, not before: a
    request that waits holds no memory. `close()` gives back what it took."""

    def __init__(self, request: BaseRequest, budget: Budget, keep: int = KEEP_BYTES) -> None:
        self._request = request
        self._budget = budget
        self._keep = keep
        self._taken = 0
        self._parts: list[bytes] = []
        self._whole: bytes | None = None if request.can_read_body else b""
        self._spent = False

    @property
    def again(self) -> bool:
        """True while it can be sent (again) from its beginning."""
        return not self._spent

    async def data(self) -> bytes | AsyncIterator[bytes] | None:
        """What to send: bytes, a stream when it is large, None without a body. Raises what the
        client's connection raises."""
        if self._whole is None and not self._spent:
            await self._collect()
        if self._whole is None:
            self._spent = True
            return self._stream()
        return self._whole or None

    def close(self) -> None:
        self._budget.give(self._taken)
        self._taken = 0
        self._parts, self._whole = [], b""

    async def _collect(self) -> None:
        if self._request.headers.get("Expect", "").lower() == "100-continue":
            await self._request.writer.write(CONTINUE)
            self._request.writer.output_size = 0
        length = self._request.content_length
        if length is not None and length > self._keep:
            return
        content = self._request.content
        while True:
            part = await content.readany()
            if not part:
                self._whole = b"".join(self._parts)
                self._parts = []
                return
            self._parts.append(part)
            if self._taken + len(part) > self._keep or not self._budget.take(len(part)):
                return
            self._taken += len(part)

    async def _stream(self) -> AsyncIterator[bytes]:
        parts, self._parts = self._parts, []
        self._budget.give(self._taken)
        self._taken = 0
        for part in parts:
            yield part
        async for part in self._request.content.iter_any():
            yield part
