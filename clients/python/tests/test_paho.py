import json
import unittest

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tenbin_load import LoadReporter, connect_properties

from .stub import CONNECT, DISCONNECT, PINGREQ, SUBSCRIBE, StubBroker

ALL = "pingreq,ack,publish"


class Reports(unittest.TestCase):
    def connect(self, broker, client, **options):
        properties = connect_properties() if broker.version == 5 else None
        client.connect("127.0.0.1", broker.port, properties=properties, **options)
        client.loop_start()
        self.addCleanup(client.loop_stop)
        self.addCleanup(client.disconnect)

    def client(self, api=CallbackAPIVersion.VERSION2, version=5):
        return Client(api, protocol=MQTTProtocolVersion.MQTTv5 if version == 5 else MQTTProtocolVersion.MQTTv311)

    def test_broker_that_offers_publish_gets_reports(self):
        with StubBroker(ALL) as broker:
            client = self.client()
            reporter = LoadReporter(client, interval=0.05)
            self.connect(broker, client)
            self.assertIn(b"load-report", broker.expect(CONNECT))
            self.assertEqual(json.loads(broker.report()), {"msgsInQueue": 0, "processingTimePerMsg": 0.0})
            reporter.queue(3)
            with reporter.processing():
                pass
            while (report := json.loads(broker.report()))["processingTimePerMsg"] == 0:
                pass
            self.assertEqual(report["msgsInQueue"], 2)
            reporter.drain()
            while "draining" not in json.loads(broker.report()):
                pass

    def test_first_message_is_reported_before_the_interval(self):
        with StubBroker("publish") as broker:
            client = self.client()
            client.on_connect = lambda client, *_: client.subscribe("a")
            reporter = LoadReporter(client, interval=3600)
            self.connect(broker, client)
            broker.expect(SUBSCRIBE)
            reporter.processing().finish()
            self.assertGreater(json.loads(broker.report())["processingTimePerMsg"], 0)

    def test_other_brokers_get_none(self):
        for carriers in (None, "", "pingreq,ack", "publisher"):
            with self.subTest(carriers), StubBroker(carriers) as broker:
                self.assert_silent(broker, self.client())

    def test_3_1_1_needs_force(self):
        with StubBroker(version=4) as broker:
            self.assert_silent(broker, self.client(version=4))
        with StubBroker(version=4) as broker:
            client = self.client(version=4)
            LoadReporter(client, interval=0.01, force=True)
            self.connect(broker, client)
            self.assertEqual(json.loads(broker.report())["msgsInQueue"], 0)

    def assert_silent(self, broker, client):
        """Asserts that a Keep Alive passes, with a draining worker, without a report."""
        reporter = LoadReporter(client, interval=0.01)
        self.connect(broker, client, keepalive=1)
        broker.expect(CONNECT)
        reporter.processing().finish()
        reporter.drain()
        self.assertEqual(broker.packets.get(timeout=60)[0], PINGREQ)

    def test_callback_of_the_application_is_called(self):
        for api, arguments in ((CallbackAPIVersion.VERSION1, 5), (CallbackAPIVersion.VERSION2, 5)):
            for is_later in (False, True):
                with self.subTest(api=api, is_later=is_later), StubBroker(ALL) as broker:
                    client = self.client(api)
                    calls = []

                    def on_connect(client, *others):
                        calls.append(1 + len(others))
                        client.subscribe("jobs/#")

                    if not is_later:
                        client.on_connect = on_connect
                    LoadReporter(client, interval=0.01)
                    if is_later:
                        client.on_connect = on_connect
                    self.connect(broker, client)
                    broker.expect(SUBSCRIBE)
                    broker.report()
                    self.assertEqual(calls, [arguments])

    def test_wrapper_around_the_reporter_is_called_once(self):
        with StubBroker(ALL) as broker:
            client = self.client()
            LoadReporter(client, interval=0.01)
            inner, calls = client.on_connect, []

            def wrapper(*arguments):
                calls.append(arguments)
                inner(*arguments)

            client.on_connect = wrapper
            self.connect(broker, client)
            broker.report()
            self.assertEqual(len(calls), 1)

    def test_next_connection_is_reported_to_as_well(self):
        with StubBroker(ALL) as broker:
            client = self.client()
            client.reconnect_delay_set(1, 1)
            LoadReporter(client, interval=0.05)
            self.connect(broker, client)
            broker.report()
            broker.cut()
            broker.expect(CONNECT)
            broker.report()
            broker.carriers = None
            broker.cut()
            broker.expect(CONNECT)
            client.disconnect()
            self.assertEqual(broker.packets.get(timeout=60)[0], DISCONNECT, "this broker offers nothing")

    def test_reporter_of_a_connected_client_is_refused(self):
        with StubBroker() as broker:
            client = self.client()
            client.on_connect = lambda client, *_: client.subscribe("a")
            self.connect(broker, client)
            broker.expect(SUBSCRIBE)
            with self.assertRaisesRegex(ValueError, r"before connect\(\)"):
                LoadReporter(client)


class ConnectProperties(unittest.TestCase):
    def test_question_is_added_once(self):
        properties = Properties(PacketTypes.CONNECT)
        properties.UserProperty = ("a", "b")
        for _ in range(2):
            self.assertIs(connect_properties(properties), properties)
        self.assertEqual(properties.UserProperty, [("a", "b"), ("load-report", "?")])
