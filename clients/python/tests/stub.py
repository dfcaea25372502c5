"""A broker for one client, which records packets and answers as the test says."""

import contextlib
import queue
import socket
import struct
import threading

PATIENCE = 60
CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT = 1, 2, 3, 4, 8, 10, 12, 14


class StubBroker:
    """Accepts connections, one after the other. `carriers` is the value of `load-report` in CONNACK, if any."""

    def __init__(self, carriers=None, version=5, refuse=0, refuse_subscription=False):
        self.carriers, self.version = carriers, version
        self.refuse, self.refuse_subscription = refuse, refuse_subscription
        self.packets = queue.Queue()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._connection = self._listener
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        self._thread.join()

    def cut(self):
        """Ends the connection without DISCONNECT."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def expect(self, kind):
        """Returns the body of the next packet of this kind, and drops packets before it."""
        while True:
            found, body = self.packets.get(timeout=PATIENCE)
            if found == kind:
                return body

    def report(self):
        """Returns the JSON of the next report."""
        body = self.expect(PUBLISH)
        topic, rest = text(body)
        assert topic == b"$load", topic
        return (rest[1:] if self.version == 5 else rest).decode()

    def publish(self, packet_id, payload, qos=1):
        identifier = struct.pack("!H", packet_id) if qos else b""
        properties = b"\0" if self.version == 5 else b""
        self._send(PUBLISH << 4 | qos << 1, string(b"jobs/1") + identifier + properties + payload)

    def _send(self, first, body):
        assert len(body) < 128
        self._connection.sendall(bytes([first, len(body)]) + body)

    def _serve(self):
        with contextlib.suppress(OSError), self._listener:
            while True:
                self._connection, _ = self._listener.accept()
                with contextlib.suppress(OSError), self._connection, self._connection.makefile("rb") as stream:
                    self._read(stream)

    def _read(self, stream):
        while first := stream.read(1):
            length = shift = 0
            while (byte := stream.read(1)[0]) >= 128:
                length, shift = length | (byte & 127) << shift, shift + 7
            body = stream.read(length | byte << shift)
            kind = first[0] >> 4
            self._answer(kind, body)
            self.packets.put((kind, body))

    def _answer(self, kind, body):
        properties = b"\0" if self.version == 5 else b""
        if kind == CONNECT:
            told = b"" if self.carriers is None else b"\x26" + string(b"load-report") + string(self.carriers.encode())
            self._send(CONNACK << 4, bytes([0, self.refuse]) + (bytes([len(told)]) + told if properties else b""))
        elif kind == SUBSCRIBE:
            self._send(9 << 4, body[:2] + properties + (b"\x87" if self.refuse_subscription else b"\x01"))
        elif kind == UNSUBSCRIBE:
            self._send(11 << 4, body[:2] + properties + b"\0")
        elif kind == PINGREQ:
            self._send(13 << 4, b"")


def string(text):
    return struct.pack("!H", len(text)) + text


def text(body):
    """Splits a body after its first string."""
    length = struct.unpack("!H", body[:2])[0]
    return body[2 : 2 + length], body[2 + length :]
