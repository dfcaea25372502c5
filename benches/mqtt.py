"""The part of MQTT 5.0 that these scripts need.

It converts whole packets to and from bytes: QoS 0 and 1, no properties but Session Expiry.
"""

import socket
import struct
import time

CONNACK, PUBLISH, PUBACK, SUBACK, UNSUBACK, DISCONNECT = 2, 3, 4, 9, 11, 14


class Broken(Exception):
    """The broker sent an unexpected packet; the text is one line."""


def connect(client_id, clean=False, expiry=0, receive_maximum=None, packet_maximum=None, will=None, user=None):
    """CONNECT without Keep Alive. `expiry`: seconds that the session outlives the connection. `will`: topic and payload,
    at QoS 0. `user`: User Name, which is the Password, too."""
    properties = b"\x11" + struct.pack(">I", expiry)
    if receive_maximum:
        properties += b"\x21" + struct.pack(">H", receive_maximum)
    if packet_maximum:
        properties += b"\x27" + struct.pack(">I", packet_maximum)
    flags = (2 if clean else 0) | (4 if will else 0) | (0xC0 if user else 0)
    head = b"\x00\x04MQTT\x05" + bytes([flags]) + b"\x00\x00"
    tail = b"\x00" + text(will[0]) + struct.pack(">H", len(will[1])) + will[1] if will else b""
    tail += 2 * text(user) if user else b""
    return packet(0x10, head + bytes([len(properties)]) + properties + text(client_id) + tail)


def subscribe(packet_id, topics, qos=1):
    """SUBSCRIBE to one filter, or to several."""
    topics = [topics] if isinstance(topics, str) else topics
    return packet(0x82, struct.pack(">H", packet_id) + b"\x00" + b"".join(text(topic) + bytes([qos]) for topic in topics))


def unsubscribe(packet_id, topics):
    return packet(0xA2, struct.pack(">H", packet_id) + b"\x00" + b"".join(text(topic) for topic in topics))


def publish(topic, payload, packet_id=None):
    """PUBLISH at QoS 1 with a packet id, else at QoS 0."""
    if packet_id is None:
        return packet(0x30, text(topic) + b"\x00" + payload)
    return packet(0x32, text(topic) + struct.pack(">H", packet_id) + b"\x00" + payload)


def puback(packet_id):
    return b"\x40\x02" + struct.pack(">H", packet_id)


def disconnect():
    return b"\xe0\x00"


def text(value):
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def packet(first, body):
    length, size = b"", len(body)
    while True:
        size, digit = size >> 7, size & 0x7F
        length += bytes([digit | 0x80 if size else digit])
        if not size:
            return bytes([first]) + length + body


class Packets:
    """Splits received bytes into packets: (first byte, body)."""

    def __init__(self):
        self.buffer = bytearray()

    def feed(self, chunk):
        self.buffer += chunk
        at, found = 0, []
        while (end := self.end(at)) is not None:
            start, stop = end
            if stop > len(self.buffer):
                break
            found.append((self.buffer[at], bytes(self.buffer[start:stop])))
            at = stop
        del self.buffer[:at]
        return found

    def end(self, at):
        """Start and end of the body of the packet at `at`, as soon as its length has come."""
        size = 0
        for place in range(4):
            if at + 1 + place >= len(self.buffer):
                return None
            digit = self.buffer[at + 1 + place]
            size |= (digit & 0x7F) << 7 * place
            if digit < 0x80:
                return at + 2 + place, at + 2 + place + size
        raise Broken("a packet's length is malformed")


def message(first, body):
    """Topic, packet id (None at QoS 0) and payload of a PUBLISH."""
    topic_end = 2 + int.from_bytes(body[:2], "big")
    topic, at, packet_id = body[2:topic_end].decode(), topic_end, None
    if first & 0x06:
        packet_id, at = int.from_bytes(body[at:at + 2], "big"), at + 2
    size, at = variable(body, at)
    return topic, packet_id, body[at + size:]


def reason(body, at):
    """The Reason Code of an acknowledgement; a missing one means success."""
    return body[at] if len(body) > at else 0


def property_of(body, at, wanted):
    """Value of a numeric property of CONNACK, whose properties begin at `at`; None if it is missing."""
    size, at = variable(body, at)
    end = at + size
    while at < end:
        name, at = body[at], at + 1
        if name in NUMBERS:
            if name == wanted:
                return int.from_bytes(body[at:at + NUMBERS[name]], "big")
            at += NUMBERS[name]
        else:
            for _ in range(2 if name == 0x26 else 1):
                at += 2 + int.from_bytes(body[at:at + 2], "big")
    return None


# Sizes in bytes of numeric properties; the others are texts, User Property is two texts.
NUMBERS = {0x11: 4, 0x21: 2, 0x22: 2, 0x13: 2, 0x27: 4, 0x24: 1, 0x25: 1, 0x28: 1, 0x29: 1, 0x2A: 1}


def variable(body, at):
    """A Variable Byte Integer, and the offset behind it."""
    size = shift = 0
    while True:
        digit, at = body[at], at + 1
        size |= (digit & 0x7F) << shift
        shift += 7
        if digit < 0x80:
            return size, at


def check_reason(what, code):
    if code >= 0x80:
        raise Broken(f"{what} was refused with 0x{code:02x}")


class Client:
    """A blocking connection."""

    def __init__(self, port, client_id, source=None, timeout=60, **options):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout, source_address=source and (source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.packets, self.read = Packets(), []
        self.socket.sendall(connect(client_id, **options))
        _, body = self.next(CONNACK)
        check_reason(f"CONNECT of {client_id}", body[1])
        self.session_present = bool(body[0] & 1)
        self.receive_maximum = property_of(body, 2, 0x21) or 65535

    def next(self, kind):
        """The next packet; raises an error if it is of another kind."""
        while not self.read:
            chunk = self.socket.recv(1 << 18)
            if not chunk:
                raise Broken("the broker closed a connection")
            self.read = self.packets.feed(chunk)
        first, body = self.read.pop(0)
        if first >> 4 != kind:
            raise Broken(f"a packet of type {first >> 4} came, and none of type {kind}")
        return first, body

    def subscribe(self, topic, qos=1):
        self.socket.sendall(subscribe(1, topic, qos))
        _, body = self.next(SUBACK)
        check_reason(f"SUBSCRIBE to {topic}", body[-1])

    def close(self):
        """Lets the broker close the connection, so that no local port stays occupied."""
        self.socket.sendall(disconnect())
        self.socket.settimeout(1)
        try:
            while self.socket.recv(1 << 16):
                pass
        except OSError:
            pass
        self.socket.close()


def publish_all(client, messages, window, pace=None):
    """Publishes (topic, payload)s at QoS 1, with at most `window` unacknowledged; `pace(number)` returns the seconds until a
    message is due."""
    sent = acknowledged = 0
    messages, is_over = iter(messages), False
    window = min(window, client.receive_maximum)
    while not is_over or acknowledged < sent:
        out = bytearray()
        while not is_over and sent - acknowledged < window and len(out) < 1 << 16:
            if pace and (wait := pace(sent)) > 0:
                if out:
                    break
                time.sleep(wait)
            try:
                topic, payload = next(messages)
            except StopIteration:
                is_over = True
                break
            out += publish(topic, payload, sent % 65535 + 1)
            sent += 1
        if out:
            client.socket.sendall(out)
        if acknowledged < sent and (is_over or sent - acknowledged >= window):
            _, body = client.next(PUBACK)
            for body in [body, *take_all(client, PUBACK)]:
                check_reason("PUBLISH", reason(body, 2))
                acknowledged += 1
    return sent


def take_all(client, kind):
    """Takes the packets of this kind that have been read already."""
    bodies = []
    while client.read:
        bodies.append(client.next(kind)[1])
    return bodies
