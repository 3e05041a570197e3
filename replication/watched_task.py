"""A task that nobody awaits: what it ends with is told, so that no fault of this program ends it without a word."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine


def watched_task(
    work: Coroutine[object, object, None], name: str, failed: Callable[[Exception], None]
) -> asyncio.Task[None]:
    """Run `work` as a task; `failed` is called on the loop with the error that it ends with, if it does.

    It belongs to no request, whichever it is begun in.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            failed(error)

    task = asyncio.create_task(work, name=name, context=contextvars.Context())
    task.add_done_callback(ended)
    return task
