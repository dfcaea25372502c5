"""Attacks of `benches/abuse` on logins, operators and the room of share groups. Each canary is one of those who suffer."""

import asyncio
import http.client
import itertools
import json
import os
import re
import socket
import ssl
import threading
import time

import abuse_sn
import mqtt

TLS = """
[[listeners]]
name = "tls"
address = "127.0.0.2:{port}"
anonymous = true
[listeners.tls]
certificate = "{certificates}/broker.pem"
key = "{certificates}/broker.key"
"""

WEBSOCKET = """
[[listeners]]
name = "web"
address = "127.0.0.2:{port}"
anonymous = true
transport = "websocket"
"""

PROXY = """
[[listeners]]
name = "proxied"
address = "127.0.0.2:{port}"
anonymous = true
proxy_from = ["127.0.0.0/8"]
proxy = "required"
"""

SERVICE = """
[[listeners]]
name = "asked"
address = "127.0.0.2:{port}"
auth = ["service"]
[[auth]]
name = "service"
kind = "http"
url = "http://127.0.0.3:{port}/"
"""

ADMIN = """
[admin]
address = "127.0.0.2:{port}"
"""

BACKLOG = """
[store]
queue_bytes_maximum = 4194304
[[share]]
group = "work"
filter = "work/#"
keep_seconds = 3600
"""

DENIED = """
[[acl]]
deny = "publish"
topic = "denied/#"
[[acl]]
allow = "all"
topic = "#"
"""

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n")
PROXY_HEADER = b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 1883\r\n"


class Visits:
    """A canary that does something as a whole, such as a login, for each message."""

    def __init__(self, port):
        self.port, self.done, self.came = port, [], threading.Condition()
        # Admin HTTP opens a moment after the other listeners.
        deadline = time.monotonic() + 5
        while True:
            try:
                return self.visit()
            except (OSError, mqtt.Broken):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def send(self, payload):
        self.visit()
        with self.came:
            self.done.append(payload)
            self.came.notify()

    def receive(self):
        with self.came:
            if not self.came.wait_for(lambda: self.done, 30):
                raise OSError("nothing was done")
            return self.done.pop(0)


def log_in(stream, **options):
    """CONNECT and CONNACK."""
    stream.sendall(mqtt.connect("visitor", clean=True, **options))
    answer = stream.recv(1 << 12)
    while len(answer) < 4:
        chunk = stream.recv(1 << 12)
        if not chunk:
            raise OSError("the broker closed a connection")
        answer += chunk
    mqtt.check_reason("CONNECT", answer[3])


class TlsLogins(Visits):
    """Logins over TLS."""

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def visit(self):
        with socket.create_connection(("127.0.0.2", self.port), 30) as plain, self.context.wrap_socket(plain) as stream:
            log_in(stream)


class WebSocketLogins(Visits):
    """Upgrades to WebSocket."""

    def visit(self):
        with socket.create_connection(("127.0.0.2", self.port), 30) as stream:
            stream.sendall(UPGRADE)
            if b" 101 " not in stream.recv(1 << 12):
                raise OSError("no upgrade")


class ProxiedLogins(Visits):
    """Logins behind a PROXY header."""

    def visit(self):
        with socket.create_connection(("127.0.0.2", self.port), 30) as stream:
            stream.sendall(PROXY_HEADER)
            log_in(stream)


class AskedLogins(Visits):
    """Logins by a service, which answers for the canary alone."""

    def __init__(self, port):
        parent = os.getpid()
        if os.fork() == 0:  # as its threads would hold the canary up
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            asyncio.run(serve_logins(port, parent))
        super().__init__(port)

    def visit(self):
        with socket.create_connection(("127.0.0.2", self.port), 30) as stream:
            log_in(stream, user="visitor")


async def serve_logins(port, parent):
    """Serves until the canary has ended."""
    async with await asyncio.start_server(answer_logins, "127.0.0.3", port, backlog=512):
        while os.getppid() == parent:
            await asyncio.sleep(0.5)
        os._exit(0)


async def answer_logins(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"content-length: *([0-9]+)", head.lower())[1])
            asked = json.loads(await reader.readexactly(length))
            if asked["client_id"] != "visitor":
                await reader.read()  # until the broker gives up
                return
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    except (asyncio.IncompleteReadError, OSError):
        pass
    finally:
        writer.close()


class Probes(Visits):
    """Requests for /readyz."""

    def visit(self):
        connection = http.client.HTTPConnection("127.0.0.2", self.port, timeout=30)
        connection.request("GET", "/readyz")
        if (status := connection.getresponse().status) != 200:
            raise OSError(f"status {status}")
        connection.close()


class QuietPublisher:
    """A publisher with little of a group's backlog."""

    def __init__(self, port):
        self.client = mqtt.Client(port, "quiet", clean=True)
        self.due = []

    def send(self, payload):
        self.due.append(payload)
        self.client.socket.sendall(mqtt.publish("work/quiet", payload, 1))

    def receive(self):
        _, body = self.client.next(mqtt.PUBACK)
        mqtt.check_reason("PUBLISH", mqtt.reason(body, 2))
        return self.due.pop(0)


def add(attack):
    """Adds the attacks; `attack` marks one."""

    def hold(stage, begins, addresses, connections=1500):
        """Opens connections that send one of `begins` each and then nothing; others follow closed ones."""
        held, opened = [], 0
        while stage.goes_on():
            if len(held) < connections:
                try:
                    host = f"127.0.1.{opened % addresses}"
                    client = socket.create_connection(("127.0.0.2", stage.port), 1, source_address=(host, 0))
                    client.setblocking(False)
                    client.send(next(begins))
                    held.append(client)
                    opened += 1
                    continue
                except OSError:
                    pass
            time.sleep(0.01)
            for client in list(held):
                try:
                    if not client.recv(1 << 16):
                        held.remove(client)
                except BlockingIOError:
                    pass
                except OSError:
                    held.remove(client)
        stage.note("opened", opened)
        stage.note("held at the end", len(held))

    @attack("edges", TLS, canary=TlsLogins)
    def silent_hellos(stage):
        """Connections of 8 addresses that send half a ClientHello, beside logins over TLS"""
        hold(stage, itertools.repeat(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), 8)

    @attack("edges", WEBSOCKET, canary=WebSocketLogins)
    def silent_upgrades(stage):
        """Connections of 8 addresses that send half an upgrade, beside upgrades"""
        hold(stage, itertools.repeat(UPGRADE[:40]), 8)

    @attack("edges", PROXY, canary=ProxiedLogins)
    def silent_proxies(stage):
        """Connections of 8 addresses that send half a PROXY header, beside logins"""
        hold(stage, itertools.repeat(PROXY_HEADER[:20]), 8)

    @attack("edges", SERVICE, canary=AskedLogins)
    def asked_for_ever(stage):
        """Logins of one address about which the service does not answer, beside others"""
        hold(stage, (mqtt.connect(f"stuck-{number}", clean=True, user="stuck") for number in itertools.count()), 1)

    @attack("edges", ADMIN, canary=Probes)
    def admin_strangers(stage):
        """Half requests of 256 addresses to admin HTTP, beside probes"""
        hold(stage, itertools.repeat(b"GET /metrics HTTP/1.1\r\n"), 256)

    @attack("edges", BACKLOG, canary=QuietPublisher)
    def full_backlog(stage):
        """One publisher fills a standing group's backlog, beside another one"""
        client, taken, refused = stage.client("loud"), 0, 0
        while stage.goes_on():
            client.socket.sendall(b"".join(mqtt.publish("work/loud", bytes(1000), number) for number in range(1, 101)))
            for _ in range(100):
                is_refused = mqtt.reason(client.next(mqtt.PUBACK)[1], 2) >= 0x80
                taken, refused = taken + (not is_refused), refused + is_refused
        stage.note("taken", taken)
        stage.note("refused", refused)

    @attack("edges", abuse_sn.LISTENER)
    def endless_devices(stage):
        """MQTT-SN clients of Duration 0 from 65,536 addresses, beside MQTT clients"""
        def datagrams():
            for number in itertools.count():
                address = abuse_sn.address_of(number % abuse_sn.ADDRESSES)
                yield abuse_sn.connect(f"endless-{number}", 0), address
                yield abuse_sn.message(abuse_sn.PINGREQ, b""), address
        abuse_sn.Flood(stage).run(datagrams())

    @attack("edges", DENIED)
    def denied(stage):
        """One client publishes to topics that the rules deny"""
        client, packets = stage.client("denied"), 0
        while stage.goes_on():
            client.socket.sendall(b"".join(mqtt.publish(f"denied/{number}", b"x") for number in range(1000)))
            packets += 1000
        stage.note("messages", packets)

    @attack("edges")
    def small_packets(stage):
        """One client sends PINGREQs, 30,000 at a time"""
        client, rounds = stage.client("pinging"), 0
        while stage.goes_on():
            client.socket.sendall(b"\xc0\x00" * 30_000)
            answers = 0
            while answers < 60_000:
                answers += len(client.socket.recv(1 << 16))
            rounds += 1
        stage.note("packets", 30_000 * rounds)
