"""Exercises a broker with Eclipse Paho's Python client, version 2: client.py URL CA.

The URL is tcp://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT/PATH, wss://HOST:PORT/PATH or unix:PATH. CA is a file with
the certificate that the broker's must come from.

Prints a line for each step and ends with status 0, or says what went wrong and ends with another one.
"""

import queue
import sys
import threading
import time
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

URL, AUTHORITY = urlsplit(sys.argv[1]), sys.argv[2]
PATIENCE = 20
VERSIONS = {"5.0": mqtt.MQTTv5, "3.1.1": mqtt.MQTTv311}


class Client:
    """A client whose events can be waited for."""

    def __init__(self, version, client_id, clean=True, will=None):
        self.is_v5 = version == "5.0"
        self.clean = clean
        options = {} if self.is_v5 else {"clean_session": clean}
        transport = {"ws": "websockets", "wss": "websockets", "unix": "unix"}.get(URL.scheme, "tcp")
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=VERSIONS[version],
            transport=transport,
            **options,
        )
        if URL.scheme in ("tls", "wss"):
            self.client.tls_set(AUTHORITY)
        if transport == "websockets":
            self.client.ws_set_options(URL.path)
        self.messages = queue.Queue()
        self.events = queue.Queue()
        self.client.on_connect = lambda _c, _u, flags, reason, _p: self.events.put((flags, reason))
        self.client.on_subscribe = lambda _c, _u, _mid, reasons, _p: self.events.put(reasons)
        self.client.on_unsubscribe = lambda _c, _u, _mid, reasons, _p: self.events.put(reasons)
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_disconnect = lambda _c, _u, _f, reason, _p: self.disconnected.set()
        self.disconnected = threading.Event()
        if will:
            self.client.will_set(*will)

    def connect(self):
        options = {}
        if self.is_v5:
            options["clean_start"] = self.clean
            if not self.clean:
                options["properties"] = Properties(PacketTypes.CONNECT)
                options["properties"].SessionExpiryInterval = 3600
        # Without a port, as a Unix socket has none, any will do.
        self.client.connect(URL.hostname or URL.path, URL.port or 1883, keepalive=60, **options)
        self.client.loop_start()
        flags, reason = self.events.get(timeout=PATIENCE)
        check(not reason.is_failure, f"CONNACK {reason}")
        self.session_present = flags.session_present
        return self

    def subscribe(self, topic, qos, **options):
        self.client.subscribe(topic, **(options or {"qos": qos}))
        reasons = self.events.get(timeout=PATIENCE)
        check([reason.value for reason in reasons] == [qos], f"granted {reasons}, asked {qos}")

    def publish(self, topic, payload, qos, retain=False, properties=None):
        sent = self.client.publish(topic, payload, qos, retain, properties=properties)
        sent.wait_for_publish(PATIENCE)
        check(sent.is_published(), f"QoS {qos} message was not acknowledged")

    def receive(self):
        return self.messages.get(timeout=PATIENCE)

    def disconnect(self):
        self.client.disconnect()
        check(self.disconnected.wait(PATIENCE), "DISCONNECT had no effect")
        self.client.loop_stop()

    def cut(self):
        """Ends the connection without DISCONNECT, and for good."""
        self.client.on_disconnect = None
        self.client.loop_stop()
        self.client._sock_close()


def check(holds, what):
    if not holds:
        raise AssertionError(what)


def publish_and_receive(version):
    subscriber = Client(version, "paho-subscriber").connect()
    publisher = Client(version, "paho-publisher").connect()
    subscriber.subscribe("paho/+", 2)
    for qos in (0, 1, 2):
        for size in (0, 100, 100_000):
            payload = bytes(size)
            publisher.publish("paho/a", payload, qos)
            message = subscriber.receive()
            got = (message.topic, message.qos, message.retain, message.payload == payload)
            check(got == ("paho/a", qos, False, True), f"{got}")
    for qos in (0, 1, 2):
        for number in range(200):
            publisher.client.publish("paho/order", str(number), qos)
        numbers = [int(subscriber.receive().payload) for _ in range(200)]
        check(numbers == list(range(200)), f"order at QoS {qos}: {numbers}")
    subscriber.client.unsubscribe("paho/+")
    subscriber.events.get(timeout=PATIENCE)
    publisher.publish("paho/a", "nobody", 1)
    check(subscriber.messages.empty(), "a message after UNSUBSCRIBE")
    subscriber.disconnect()
    publisher.disconnect()


def retained(version):
    publisher = Client(version, "paho-publisher").connect()
    publisher.publish("paho-retained", "state", 1, retain=True)
    subscriber = Client(version, "paho-subscriber").connect()
    subscriber.subscribe("paho-retained", 1)
    message = subscriber.receive()
    check((message.payload, message.retain) == (b"state", True), f"{message.payload}")
    publisher.publish("paho-retained", "", 1, retain=True)
    check(subscriber.receive().payload == b"", "the removal is forwarded")
    subscriber.disconnect()
    publisher.disconnect()


def will(version):
    heir = Client(version, "paho-heir").connect()
    heir.subscribe("paho-will", 2)
    Client(version, "paho-polite", will=("paho-will", "polite", 1)).connect().disconnect()
    Client(version, "paho-mortal", will=("paho-will", "gone", 2)).connect().cut()
    message = heir.receive()
    check((message.payload, message.qos) == (b"gone", 2), f"{message.payload}")
    heir.disconnect()


def shared(version):
    members = [Client(version, f"paho-member-{number}").connect() for number in range(2)]
    for member in members:
        member.subscribe("$share/paho/work", 1)
    publisher = Client(version, "paho-publisher").connect()
    for number in range(20):
        publisher.publish("work", str(number), 1)
    deadline = time.monotonic() + PATIENCE
    while sum(member.messages.qsize() for member in members) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    counts = [member.messages.qsize() for member in members]
    check(counts == [10, 10], f"20 messages were shared as {counts}")
    for client in (*members, publisher):
        client.disconnect()


def session(version):
    first = Client(version, "paho-session", clean=False).connect()
    check(not first.session_present, "a session before the first connection")
    first.subscribe("paho-session", 2)
    first.disconnect()
    publisher = Client(version, "paho-publisher").connect()
    for number in range(10):
        # Paho hands a QoS 2 message over at its PUBREL, so the two kinds do not keep an order between them.
        publisher.publish("paho-session", str(number), 1 if number < 5 else 2)
    again = Client(version, "paho-session", clean=False)
    again.connect()
    check(again.session_present, "the session is gone")
    numbers = [int(again.receive().payload) for _ in range(10)]
    check(numbers == list(range(10)), f"{numbers}")
    again.disconnect()
    Client(version, "paho-session").connect().disconnect()
    publisher.disconnect()


def properties(version):
    if version != "5.0":
        return
    client = Client(version, "paho-properties").connect()
    identifier = Properties(PacketTypes.SUBSCRIBE)
    identifier.SubscriptionIdentifier = 42
    options = SubscribeOptions(qos=1, retainAsPublished=True)
    client.subscribe("paho-properties", 1, options=options, properties=identifier)
    sent = Properties(PacketTypes.PUBLISH)
    sent.PayloadFormatIndicator = 1
    sent.ContentType = "text/plain"
    sent.ResponseTopic = "reply"
    sent.CorrelationData = b"\x00\xff"
    sent.MessageExpiryInterval = 100
    sent.UserProperty = [("b", "2"), ("a", "1"), ("b", "2")]
    client.publish("paho-properties", "x", 1, retain=True, properties=sent)
    message = client.receive()
    got = message.properties
    check(message.retain, "retain as published")
    check(got.SubscriptionIdentifier == [42], f"{got}")
    for name in ("PayloadFormatIndicator", "ContentType", "ResponseTopic", "CorrelationData", "UserProperty"):
        check(getattr(got, name) == getattr(sent, name), f"{name}: {got}")
    check(95 <= got.MessageExpiryInterval <= 100, f"{got}")
    client.publish("paho-properties", "", 1, retain=True)
    client.disconnect()


STEPS = (publish_and_receive, retained, will, shared, session, properties)

for version in VERSIONS:
    for step in STEPS:
        step(version)
        print(f"{step.__name__} at {version}: ok", flush=True)
