#!/usr/bin/env python3
"""Clients of MQTT 3.1.1 at QoS 0 and 1: an example of a client program for `tenbin-verify`.

docs/VERIFY.md describes the arguments, variables and lines. Only Python is needed.
"""

import os
import select
import socket
import struct
import sys
import threading
import time

ROLE, TARGET, TOPIC, SIZE, RATE, GROUP, RUN = sys.argv[1:]
SIZE, RUN = int(SIZE), int(RUN)
COUNT, FIRST, PUBLISHERS, IN_FLIGHT, QOS, CLOCK_NS = (
    int(os.environ["TENBIN_" + name])
    for name in ("COUNT", "FIRST", "PUBLISHERS", "IN_FLIGHT", "QOS", "CLOCK_NS")
)
INTERVAL_NS = int(os.environ.get("TENBIN_INTERVAL_NS", 0))
KEEPS_SESSION = "TENBIN_SESSION_EXPIRY" in os.environ
STAMP = struct.Struct(">QHIIH")

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK = 0x10, 0x20, 0x30, 0x40, 0x82, 0x90
DUP, AT_LEAST_ONCE = 0x08, 0x02


class Run:
    """Course of the run, as standard input tells it."""

    start_ns = None
    stop_ns = None
    is_over = False


def now_ns():
    return time.monotonic_ns() + CLOCK_NS


def say(line):
    sys.stdout.write(line + "\n")


def text(string):
    return struct.pack(">H", len(string)) + string.encode()


def packet(kind, body):
    length, rest = b"", len(body)
    while True:
        rest, digit = rest >> 7, rest & 127
        length += bytes([digit | 128 if rest else digit])
        if not rest:
            return bytes([kind]) + length + body


class Client:
    """A connection, which is made again when it is lost."""

    def __init__(self, number):
        self.number = number
        self.under_way = {}
        self.connect()

    def connect(self):
        doors = [door.rsplit(":", 1) for door in TARGET.split(",")]
        for attempt in range(1_000_000):
            host, port = doors[attempt % len(doors)]
            try:
                self.socket = socket.create_connection((host, int(port)), timeout=2)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                flags = 0 if KEEPS_SESSION else 2
                name = f"{ROLE}-{self.number}-{RUN}"
                self.send(CONNECT, text("MQTT") + bytes([4, flags, 0, 0]) + text(name))
                self.input, self.waiting = b"", []
                code = self.wait_for(CONNACK)[1]
                if code:
                    raise ConnectionError(f"the broker refuses the connection with code {code}")
                self.restore()
                return
            except OSError as error:
                if Run.is_over:
                    return
                if Run.start_ns is None and attempt >= 100:
                    sys.exit(f"{ROLE} {self.number}: {error}")
                time.sleep(0.05)

    def send(self, kind, body):
        self.socket.sendall(packet(kind, body))

    def wait_for(self, wanted):
        """Waits for an answer, and returns it. Messages of the session may come right behind it."""
        end = time.monotonic() + 5
        while time.monotonic() < end:
            packets = self.receive(0.5)
            for place, (kind, body) in enumerate(packets):
                if kind == wanted:
                    self.waiting = packets[place + 1 :]
                    return body
        raise ConnectionError("the broker does not answer")

    def receive(self, seconds):
        """Packets that come within some time; ConnectionError at the end of the connection."""
        if self.waiting:
            packets, self.waiting = self.waiting, []
            return packets
        if not select.select([self.socket], [], [], seconds)[0]:
            return []
        chunk = self.socket.recv(1 << 16)
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        self.input += chunk
        packets = []
        while len(self.input) >= 2:
            length, place = 0, 1
            while place < len(self.input):
                length |= (self.input[place] & 127) << 7 * (place - 1)
                place += 1
                if self.input[place - 1] < 128:
                    break
            else:
                break
            if len(self.input) < place + length:
                break
            packets.append((self.input[0], self.input[place : place + length]))
            self.input = self.input[place + length :]
        return packets


class Publisher(Client):
    """Publishes one stream, and sends unacknowledged messages again after a loss of its connection."""

    next = 0

    def prepare(self):
        pass

    def restore(self):
        for number in list(self.under_way):
            self.send_message(number, DUP if QOS else 0)

    def work(self):
        while not Run.is_over and (left_ns := Run.start_ns - now_ns()) > 0:
            time.sleep(min(left_ns / 1e9, 0.05))
        first_ns = Run.start_ns + INTERVAL_NS * self.number // PUBLISHERS
        while not Run.is_over:
            due_ns = first_ns + INTERVAL_NS * self.next if INTERVAL_NS else now_ns()
            has_room = len(self.under_way) < (IN_FLIGHT if not INTERVAL_NS else 60_000)
            is_last = Run.stop_ns is not None and due_ns > Run.stop_ns
            if is_last and not self.under_way:
                break
            wait_ns = due_ns - now_ns()
            try:
                if wait_ns <= 0 and has_room and not is_last:
                    self.publish(due_ns)
                    wait_ns = 0
                elif is_last or not has_room:
                    wait_ns = 50_000_000
                self.take(self.receive(min(max(wait_ns, 0) / 1e9, 0.05)))
            except OSError:
                self.connect()
        for number, (due_ns, sent_ns) in self.under_way.items():
            say(f"P {self.number} {number} {due_ns} {sent_ns} -")

    def publish(self, due_ns):
        number, self.next = self.next, self.next + 1
        self.under_way[number] = (due_ns, now_ns())
        self.send_message(number, 0)

    def send_message(self, number, flags):
        stamp = STAMP.pack(self.under_way[number][0], RUN, self.number, number, 0)
        packet_id = struct.pack(">H", number % 65_535 + 1) if QOS else b""
        body = text(f"{TOPIC}/{self.number}") + packet_id + stamp + b"x" * (SIZE - len(stamp))
        self.send(PUBLISH | flags | (AT_LEAST_ONCE if QOS else 0), body)
        if QOS == 0:
            self.ended(number)

    def take(self, packets):
        for kind, body in packets:
            if kind == PUBACK:
                packet_id = struct.unpack(">H", body[:2])[0]
                # Fewer messages than packet identifiers are under way.
                low = self.next - 1 - (self.next - packet_id) % 65_535
                self.ended(low)

    def ended(self, number):
        if number in self.under_way:
            due_ns, sent_ns = self.under_way.pop(number)
            say(f"P {self.number} {number} {due_ns} {sent_ns} {now_ns()}")


class Subscriber(Client):
    """Receives all streams, and subscribes again after a loss of its connection."""

    def prepare(self):
        if self.wait_for(SUBACK)[2] > 2:
            sys.exit(f"subscriber {self.number}: the broker refuses the subscription")

    def restore(self):
        group = "" if GROUP == "-" else f"$share/{GROUP}/"
        self.send(SUBSCRIBE, b"\0\1" + text(f"{group}{TOPIC}/+") + bytes([QOS]))

    def work(self):
        while not Run.is_over:
            try:
                self.take(self.receive(0.05))
            except OSError:
                self.connect()

    def take(self, packets):
        received_ns = now_ns()
        for kind, body in packets:
            if kind & 0xF0 != PUBLISH:
                continue
            place = 2 + struct.unpack(">H", body[:2])[0]
            if kind & AT_LEAST_ONCE:
                packet_id, place = body[place : place + 2], place + 2
            payload = body[place:]
            if len(payload) == SIZE:
                due_ns, run, stream, number, _ = STAMP.unpack_from(payload)
                if run == RUN:
                    dup = 1 if kind & DUP else 0
                    say(f"S {self.number} {stream} {number} {due_ns} {received_ns} {dup}")
            if kind & AT_LEAST_ONCE:
                self.send(PUBACK, packet_id)


def flush():
    while True:
        time.sleep(0.003)
        sys.stdout.flush()


def main():
    if QOS == 2:
        sys.exit("mqtt.py has QoS 0 and 1 alone, and the plan wants QoS 2")
    kind = Publisher if ROLE == "publisher" else Subscriber
    clients = [kind(number) for number in range(FIRST, FIRST + COUNT)]
    for client in clients:
        client.prepare()
    threading.Thread(target=flush, daemon=True).start()
    say("ready")
    threads = []

    def publish_all():
        for thread in threads:
            thread.join()
        say("done")

    for line in sys.stdin:
        word, *rest = line.split()
        if word == "start":
            Run.start_ns = int(rest[0])
            threads += [threading.Thread(target=client.work) for client in clients]
            for thread in threads:
                thread.start()
            if ROLE == "publisher":
                threading.Thread(target=publish_all).start()
        elif word == "stop":
            Run.stop_ns = now_ns()
    Run.is_over = True
    for thread in threads:
        thread.join()
    sys.stdout.flush()


main()
