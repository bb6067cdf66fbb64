"""Worker threads that never keep the process: leaving does not wait for an unanswered question.

asyncio joins the threads of its default executor at the end; a question to a runtime can take
15 s, and the console must be gone at once when the operator leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class DaemonThreads(ThreadPoolExecutor):
    """A daemon thread for each call (calls are few: key presses)."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as problem:
                future.set_exception(problem)
            else:
                future.set_result(result)

        threading.Thread(target=work, name="stoker-worker", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for nobody."""
