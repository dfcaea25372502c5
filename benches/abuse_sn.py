"""Attacks of `benches/abuse` on MQTT-SN and HTTP listeners, and a canary that speaks MQTT-SN."""

import itertools
import os
import random
import socket
import struct
import time
from pathlib import Path

KEYS = Path(__file__).resolve().parent / "brokers" / "sn-keys"

LISTENER = """
[[listeners]]
transport = "mqtt-sn"
name = "field"
address = "127.0.0.1:{port}"
anonymous = true
[listeners.sn]
"""

DTLS = LISTENER + f"""
[[listeners]]
transport = "mqtt-sn"
name = "secured"
address = "127.0.0.2:{{port}}"
anonymous = true
[listeners.sn]
dtls.psk_file = "{KEYS}"
"""

HTTP = LISTENER + """
[[listeners]]
transport = "http"
name = "web"
address = "127.0.0.2:{port}"
anonymous = true
"""

# Bytes that the canary waits for.
REGISTER, PUBLISH, PINGREQ = 0x0A, 0x0C, 0x16

# Short topic name of the canary.
TOPIC = b"cy"

# Addresses of attackers.
ADDRESSES = 65536

# A source address for one datagram, as of `ip(7)`.
IP_PKTINFO = 8


def message(kind, body):
    return bytes([len(body) + 2, kind]) + body


def connect(client_id, duration=60):
    return message(0x04, b"\x04\x01" + struct.pack(">H", duration) + client_id.encode())


def short_publish(payload, topic=TOPIC, qos=0, number=0):
    return message(PUBLISH, bytes([qos << 5 & 0x60 | 0x02]) + topic + struct.pack(">H", number) + payload)


def register(topic, number):
    return message(REGISTER, b"\0\0" + struct.pack(">H", number) + topic.encode())


def address_of(number):
    return f"127.{64 + (number >> 16 & 0x3F)}.{number >> 8 & 0xFF}.{number & 0xFF}"


class Client:
    """A client with one socket."""

    def __init__(self, port, client_id, host="127.0.0.1"):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((host, port))
        self.socket.settimeout(10)
        # A broker that starts answers "congestion".
        while self.ask(connect(client_id), 0x05)[2] != 0:
            time.sleep(0.1)

    def send(self, datagram):
        self.socket.send(datagram)

    def ask(self, request, kind):
        """The answer of this kind to a request."""
        self.send(request)
        answer = self.receive()
        while answer[1] != kind:
            answer = self.receive()
        return answer

    def receive(self):
        """The next message besides questions, which are answered."""
        while True:
            datagram = self.socket.recv(65536)
            if datagram[1] == REGISTER:
                self.send(message(0x0B, datagram[2:6] + b"\0"))
            elif datagram[1] == PINGREQ:
                self.send(message(0x17, b""))
            else:
                return datagram


class CanaryClients:
    """The canary's sender and receiver."""

    def __init__(self, port):
        self.sender, self.receiver = Client(port, "canary-out"), Client(port, "canary-in")
        self.receiver.ask(message(0x12, b"\x02\0\1" + TOPIC), 0x13)
        self.receiver.socket.settimeout(2)

    def send(self, payload):
        self.sender.send(short_publish(payload))

    def receive(self):
        while True:
            datagram = self.receiver.receive()
            if datagram[1] == PUBLISH:
                return datagram[7:]


class Flood:
    """Datagrams from any address of this host."""

    def __init__(self, stage, host="127.0.0.1"):
        self.stage, self.to = stage, (host, stage.port)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("0.0.0.0", 0))
        self.sent = 0

    def send(self, datagram, source):
        control = struct.pack("=I4s4s", 0, socket.inet_aton(source), bytes(4))
        self.socket.sendmsg([datagram], [(socket.IPPROTO_IP, IP_PKTINFO, control)], 0, self.to)
        self.sent += 1

    def run(self, datagrams):
        """Sends pairs of a datagram and its source while the attack goes on."""
        for datagram, source in datagrams:
            if self.sent % 64 == 0 and not self.stage.goes_on():
                break
            self.send(datagram, source)
        self.stage.notes.send(("datagrams", self.sent))


def add(attack):
    """Adds the attacks; `attack` marks one."""

    @attack("SN", LISTENER, canary=CanaryClients)
    def sn_damaged(stage):
        """Cut, padded, nested, empty and random datagrams"""
        whole = [connect("c"), short_publish(b"x", qos=1, number=1), register("a/b", 1), message(0x12, b"\0\0\1a/#")]
        nested = b"\x06\xfe\0abc" * 20 + connect("c")
        dice = random.Random(1)

        def datagrams():
            for number in itertools.count():
                base = whole[number % len(whole)]
                kinds = (base[:-1], base + b"\0", b"", nested, dice.randbytes(dice.randrange(64)), b"\x01\xff\xff" + base)
                yield kinds[number // len(whole) % len(kinds)], address_of(number % ADDRESSES)
        Flood(stage).run(datagrams())

    @attack("SN", LISTENER, canary=CanaryClients)
    def sn_connects(stage):
        """CONNECTs from 65,536 addresses"""
        Flood(stage).run((connect(f"flood-{number}"), address_of(number % ADDRESSES)) for number in itertools.count())

    @attack("SN", LISTENER, canary=CanaryClients)
    def sn_fresh_ids(stage):
        """CONNECTs with fresh ids from one address"""
        Flood(stage).run((connect(f"flood-{number}"), address_of(1)) for number in itertools.count())

    @attack("SN", LISTENER, canary=CanaryClients)
    def sn_foreign_id(stage):
        """CONNECTs from everywhere with the id of the canary"""
        Flood(stage).run((connect("canary-in"), address_of(number % ADDRESSES)) for number in itertools.count())

    @attack("SN", LISTENER, canary=CanaryClients)
    def sn_registers(stage):
        """REGISTERs without end"""
        client = Client(stage.port, "attacker")
        for number in itertools.count():
            if number % 64 == 0 and not stage.goes_on():
                break
            client.send(register(f"{number:x}" * 20, number % 65535 + 1))
        stage.notes.send(("datagrams", number))

    @attack("SN", LISTENER, canary=CanaryClients)
    def sn_ids_in_flight(stage):
        """Messages at QoS 1 and 2 that share one id"""
        client = Client(stage.port, "attacker")
        for number in itertools.count():
            if number % 64 == 0 and not stage.goes_on():
                break
            client.send(short_publish(b"%d" % number, b"xy", qos=number % 2 + 1, number=7))
        stage.notes.send(("datagrams", number))

    @attack("SN", LISTENER + "qos_minus_one = true\n", canary=CanaryClients)
    def sn_minus_one(stage):
        """Messages at QoS -1 without a connection"""
        Flood(stage).run((short_publish(b"x" * 64, b"xy", qos=3), address_of(number % ADDRESSES)) for number in itertools.count())

    @attack("SN", LISTENER + "per_address_maximum = 0\nconnects_per_second_per_address = 0\n", canary=CanaryClients)
    def sn_sleepers(stage):
        """500 sleeping clients whose buffers are full"""
        for number in range(500):
            sleeper = Client(stage.port, f"sleeper-{number}")
            sleeper.ask(message(0x12, b"\x02\0\1xy"), 0x13)
            sleeper.ask(message(0x18, struct.pack(">H", 3600)), 0x18)
        client = Client(stage.port, "attacker")
        while stage.goes_on():
            client.send(short_publish(b"x" * 200, b"xy"))
            # One message goes to 500 clients: the machine has two processors.
            time.sleep(0.01)

    @attack("SN", DTLS, canary=CanaryClients)
    def dtls_hellos(stage):
        """ClientHellos of DTLS from 65,536 addresses, beside clients without DTLS"""
        def hello():
            body = b"\xfe\xfd" + os.urandom(32) + b"\0\0" + b"\0\2\xc0\xa8" + b"\1\0" + b"\0\4\0\x17\0\0"
            length = struct.pack(">I", len(body))[1:]
            handshake = b"\1" + length + b"\0\0" + b"\0\0\0" + length + body
            return b"\x16\xfe\xfd\0\0" + bytes(6) + struct.pack(">H", len(handshake)) + handshake
        Flood(stage, "127.0.0.2").run((hello(), address_of(number % ADDRESSES)) for number in itertools.count())

    def http(stage, begin, go_on):
        """Opens connections one after the other, and lets each go on."""
        sockets = []
        while stage.goes_on():
            if len(sockets) < 500:
                try:
                    client = socket.create_connection(("127.0.0.2", stage.port), 5)
                    client.setblocking(False)
                    client.send(begin)
                    sockets.append(client)
                except OSError:
                    time.sleep(0.01)
            for client in list(sockets):
                try:
                    client.send(go_on)
                except BlockingIOError:
                    pass
                except OSError:
                    sockets.remove(client)
        stage.notes.send(("connections", len(sockets)))

    @attack("HTTP", HTTP, canary=CanaryClients)
    def http_drip(stage):
        """Headers that come byte by byte"""
        http(stage, b"POST /topics/a HTTP/1.1\r\nX: ", b"x")

    @attack("HTTP", HTTP, canary=CanaryClients)
    def http_bodies(stage):
        """Bodies without end"""
        http(stage, b"POST /topics/a HTTP/1.1\r\nHost: a\r\nContent-Length: 268435456\r\n\r\n", bytes(65536))

    @attack("HTTP", HTTP, canary=CanaryClients)
    def http_pipelines(stage):
        """Requests in pipelines whose answers nobody reads"""
        request = b"POST /topics/a?qos=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
        http(stage, request, request * 64)
