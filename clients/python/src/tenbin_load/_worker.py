"""A worker of a share group."""

from __future__ import annotations

import signal
import threading
from queue import SimpleQueue
from typing import Any, Callable

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion

from ._paho import LoadReporter, connect_properties

READY = object()
"""Event of a subscription."""
LOOK = object()
"""Event that makes the worker look whether it should stop."""
END = object()
"""Event after the last message."""


class Worker:
    """A worker of `$share/GROUP/FILTER`: processes one message after the other, at QoS 1.

    It acknowledges a message when `process(message)` has returned. An exception ends the worker: `run()` raises it, and
    the broker gives the messages that are not acknowledged to others. `on_ready()` is called after each subscription.

    `client` may get a user name, TLS and the like before `run()`; its callbacks `on_connect`, `on_disconnect`,
    `on_message`, `on_subscribe` and `on_unsubscribe` are the worker's. `reporter` reports the load, if the broker
    takes reports.
    """

    def __init__(
        self,
        group: str,
        filter: str,
        process: Callable[[MQTTMessage], object],
        *,
        client_id: str = "",
        interval: float = 1.0,
        eager: bool = True,
        on_ready: Callable[[], object] | None = None,
    ) -> None:
        if not group or set(group) & set("/+#"):
            raise ValueError(f"share name {group!r} is empty, or has one of / + #")
        if not filter:
            raise ValueError("the filter is empty")
        self.topic = f"$share/{group}/{filter}"
        self.client = Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5, manual_ack=True
        )
        self.client.reconnect_delay_set(min_delay=1, max_delay=15)
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_message = self._on_message
        self.client.on_subscribe = self._on_subscribe
        self.client.on_unsubscribe = lambda *_: self._events.put(END)
        self.reporter = LoadReporter(self.client, interval, eager)
        self._process = process
        self._on_ready = on_ready
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._is_stopping = False
        self._was_connected = False
        # Number of the connection. A Packet Identifier means another message on the next one.
        self._connection = 0
        self._connection_lock = threading.Lock()

    def run(self, host: str = "localhost", port: int = 1883, **connect: Any) -> None:
        """Works until `stop()`, SIGTERM, SIGINT or an error. `connect` has further arguments of `Client.connect`.

        The worker reconnects when it loses its connection, but not if the first one fails.
        """
        connect["properties"] = connect_properties(connect.get("properties"))
        self.client.connect(host, port, **{"clean_start": True, **connect})
        restore = self._handle_signals()
        self.client.loop_start()
        try:
            self._work()
        finally:
            self.client.disconnect()
            self.client.loop_stop()
            restore()

    def stop(self) -> None:
        """Makes `run()` return, after the messages that the worker has. Signal handlers and threads may call it.

        The worker announces that it drains, unsubscribes, processes its messages and disconnects.
        """
        self._is_stopping = True
        self.reporter.drain()
        self._events.put(LOOK)

    def _work(self) -> None:
        is_unsubscribing = False
        while True:
            event = self._events.get()
            if event is END:
                return
            if isinstance(event, Exception):
                raise event
            if event is READY:
                if self._on_ready is not None:
                    self._on_ready()
            elif event is not LOOK:
                self._take(*event)
            if self._is_stopping and not is_unsubscribing:
                is_unsubscribing = True
                code, _ = self.client.unsubscribe(self.topic)
                if code != MQTTErrorCode.MQTT_ERR_SUCCESS:
                    return

    def _take(self, connection: int, message: MQTTMessage) -> None:
        if connection != self._connection:
            return  # Its connection has ended, and another worker gets it.
        with self.reporter.processing():
            self._process(message)
            with self._connection_lock:
                if connection == self._connection:
                    self.client.ack(message.mid, message.qos)

    def _handle_signals(self) -> Callable[[], None]:
        """Makes SIGTERM and SIGINT stop the worker. A second signal has its earlier effect."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None

        def handle(number: int, _frame: object) -> None:
            signal.signal(number, before[signal.Signals(number)])
            self.stop()

        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return restore

    def _on_connect(self, client: Client, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            if not self._was_connected:
                self._events.put(ConnectionRefusedError(f"the broker refuses the connection: {reason}"))
        elif self._is_stopping:
            self._events.put(END)
        else:
            self._was_connected = True
            client.subscribe(self.topic, qos=1)

    def _on_subscribe(self, _client: Client, _userdata: Any, _mid: int, reasons: Any, _properties: Any) -> None:
        if reasons[0].is_failure:
            self._events.put(PermissionError(f"the broker refuses the subscription {self.topic}: {reasons[0]}"))
        else:
            self._events.put(READY)

    def _on_message(self, _client: Client, _userdata: Any, message: MQTTMessage) -> None:
        self.reporter.arrived()
        self._events.put((self._connection, message))

    def _on_disconnect(self, *_: Any) -> None:
        with self._connection_lock:
            self._connection += 1
        self.reporter.queue(0)
        if self._is_stopping:
            self._events.put(END)
