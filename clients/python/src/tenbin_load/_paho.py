"""Load reports of a paho-mqtt client."""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from ._load import TOPIC, Load

PROPERTY = "load-report"


def connect_properties(properties: Properties | None = None) -> Properties:
    """Returns properties of CONNECT that ask the broker for its carriers of load reports.

    They are added to `properties` if that is given.
    """
    properties = Properties(PacketTypes.CONNECT) if properties is None else properties
    if all(name != PROPERTY for name, _ in getattr(properties, "UserProperty", ())):
        properties.UserProperty = (PROPERTY, "?")
    return properties


class LoadReporter(Load):
    """Reports the load of a worker to the broker, as messages to `$load`. Create it before `client.connect()`.

    The reporter is silent unless the broker's CONNACK offers `publish`, for which the client asks with
    `connect_properties()`. `force` reports to any broker, for MQTT 3.1.1. `interval` is in seconds. `eager` also sends
    reports early after a large change.
    """

    def __init__(self, client: Client, interval: float = 1.0, eager: bool = True, force: bool = False) -> None:
        super().__init__(interval, eager)
        if client.is_connected():
            raise ValueError("the client is connected: its LoadReporter must be created before connect()")
        self._client = client
        self._force = force
        self._news: SimpleQueue[None] = SimpleQueue()
        self._chain_on_connect()
        before = client.on_pre_connect

        def on_pre_connect(client: Client, userdata: Any) -> None:
            self._chain_on_connect()
            if before is not None:
                before(client, userdata)

        client.on_pre_connect = on_pre_connect

    def _chain_on_connect(self) -> None:
        """Puts the reporter before the application's callback, which may have been set since."""
        callback: Any = self._client.on_connect
        if getattr(callback, "load_reporter", None) is self:
            return

        def on_connect(client: Client, userdata: Any, flags: Any, reason: Any, *properties: Any) -> None:
            if reason == 0:
                self._begin(properties[0] if properties else None)
            if callback is not None:
                callback(client, userdata, flags, reason, *properties)

        on_connect.load_reporter = self  # type: ignore[attr-defined]
        self._client.on_connect = on_connect

    def _begin(self, properties: Properties | None) -> None:
        """Begins to report on a new connection, if the broker takes reports."""
        told = [value for name, value in getattr(properties, "UserProperty", ()) if name == PROPERTY]
        is_offered = bool(told) and "publish" in told[0].split(",")
        before, self._news = self._news, SimpleQueue()
        before.put(None)  # ends the thread of the connection before
        if is_offered or self._force:
            self._connected(time.monotonic())
            threading.Thread(target=self._run, args=(self._news,), name="tenbin-load", daemon=True).start()

    def _wake(self) -> None:
        self._news.put(None)

    def _run(self, news: SimpleQueue[None]) -> None:
        while True:
            try:
                news.get(timeout=self._seconds_left(time.monotonic()))
            except Empty:
                pass
            if news is not self._news or not self._client.is_connected():
                return
            # Unwritten data would make a report stale before it leaves. Its counts go into the next one.
            if self._turn(time.monotonic()) and not self._client.want_write():
                self._client.publish(TOPIC, self._take().to_json())
