"""Load reports of an aiomqtt client."""

from __future__ import annotations

import asyncio
import contextlib
import time

from aiomqtt import Client, MqttError

from ._load import TOPIC, Load

__all__ = ["LoadReporter"]


class LoadReporter(Load):
    """Reports the load of a worker while its `async with` block runs, inside the block of its client.

    Messages that wait in `client.messages` count as the queue. aiomqtt does not show CONNACK, so the application has to
    know that the broker is Tenbin, and say so with `force=True`. `interval` is in seconds. `eager` also sends reports
    early after a large change.
    """

    def __init__(self, client: Client, interval: float = 1.0, eager: bool = True, force: bool = False) -> None:
        super().__init__(interval, eager)
        if not force:
            raise ValueError("force=True is missing: aiomqtt does not show whether the broker takes load reports")
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    async def __aenter__(self) -> LoadReporter:
        self._is_over = False
        self._connected(time.monotonic())
        self._task = self._loop.create_task(self._run())
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._is_over = True  # Before Python 3.12, wait_for() may swallow a cancellation.
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def _waiting(self) -> int:
        return super()._waiting() + len(self._client.messages)

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._news.set)

    async def _run(self) -> None:
        while not self._is_over:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), self._seconds_left(time.monotonic()))
            self._news.clear()
            if self._turn(time.monotonic()):
                # The application learns of a lost connection by its messages.
                with contextlib.suppress(MqttError):
                    await self._client.publish(TOPIC, self._take().to_json())
