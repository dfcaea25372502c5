import json
import os
import queue
import signal
import struct
import threading
import unittest

from tenbin_load import Worker

from .stub import CONNECT, DISCONNECT, PATIENCE, PUBACK, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, StubBroker


class Running:
    """A worker in a thread, whose messages wait until the test lets them end."""

    def __init__(self, broker, **options):
        self.begun, self.may_end = queue.Queue(), queue.Queue()
        self.worker = Worker("g", "jobs/#", self.process, **options)
        self.ended = queue.Queue()
        threading.Thread(target=self.run, args=(broker,), daemon=True).start()

    def run(self, broker):
        try:
            self.worker.run("127.0.0.1", broker.port)
            self.ended.put(None)
        except Exception as error:
            self.ended.put(error)

    def process(self, message):
        self.begun.put(message.payload)
        error = self.may_end.get(timeout=PATIENCE)
        if error:
            raise error


def identifier(body):
    return struct.unpack("!H", body[:2])[0]


class Working(unittest.TestCase):
    def test_message_is_acknowledged_after_its_processing(self):
        ready = queue.Queue()
        with StubBroker("publish") as broker:
            running = Running(broker, on_ready=lambda: ready.put(True), interval=0.01)
            self.assertIn(b"$share/g/jobs/#\x01", broker.expect(SUBSCRIBE))
            self.assertTrue(ready.get(timeout=PATIENCE))
            broker.publish(1, b"one")
            broker.publish(2, b"two")
            self.assertEqual(running.begun.get(timeout=PATIENCE), b"one")
            while json.loads(broker.report())["msgsInQueue"] != 1:
                pass
            kinds = set()
            while not broker.packets.empty():
                kinds.add(broker.packets.get()[0])
            self.assertLessEqual(kinds, {PUBLISH})
            for packet_id in (1, 2):
                running.may_end.put(None)
                self.assertEqual(identifier(broker.expect(PUBACK)), packet_id)
            running.worker.stop()
            broker.expect(DISCONNECT)
            self.assertIsNone(running.ended.get(timeout=PATIENCE))

    def test_stop_drains_and_finishes_the_messages_in_flight(self):
        with StubBroker("publish") as broker:
            running = Running(broker, interval=3600)
            broker.expect(SUBSCRIBE)
            broker.publish(1, b"one")
            broker.publish(2, b"two")
            running.begun.get(timeout=PATIENCE)
            running.worker.stop()
            self.assertTrue(json.loads(broker.report())["draining"], "during the first message")
            running.may_end.put(None)
            self.assertIn(b"$share/g/jobs/#", broker.expect(UNSUBSCRIBE))
            running.may_end.put(None)
            self.assertEqual(identifier(broker.expect(PUBACK)), 2)
            broker.expect(DISCONNECT)
            self.assertIsNone(running.ended.get(timeout=PATIENCE))

    def test_packet_identifier_of_a_lost_connection_is_not_acknowledged(self):
        with StubBroker() as broker:
            running = Running(broker)
            broker.expect(SUBSCRIBE)
            for packet_id in (1, 2):
                broker.publish(packet_id, b"old")
            running.begun.get(timeout=PATIENCE)
            broker.cut()
            broker.expect(SUBSCRIBE)
            running.may_end.put(None)
            broker.publish(3, b"new")
            self.assertEqual(running.begun.get(timeout=PATIENCE), b"new", "the second one went to others")
            running.may_end.put(None)
            self.assertEqual(identifier(broker.expect(PUBACK)), 3)
            running.worker.stop()
            self.assertIsNone(running.ended.get(timeout=PATIENCE))

    def test_each_connection_is_a_clean_start(self):
        with StubBroker() as broker:
            running = Running(broker)
            for _ in range(2):
                self.assertEqual(broker.expect(CONNECT)[7] & 2, 2)
                broker.expect(SUBSCRIBE)
                broker.cut()
            running.worker.stop()
            self.assertIsNone(running.ended.get(timeout=PATIENCE))

    def test_exception_ends_the_worker_and_the_message_is_not_acknowledged(self):
        with StubBroker() as broker:
            running = Running(broker)
            broker.expect(SUBSCRIBE)
            broker.publish(1, b"one")
            error = KeyError("bad")
            running.may_end.put(error)
            self.assertIs(running.ended.get(timeout=PATIENCE), error)
            self.assertEqual(broker.packets.get(timeout=PATIENCE)[0], DISCONNECT)

    def test_refusals_are_errors(self):
        with StubBroker(refuse=0x87) as broker:
            error = Running(broker).ended.get(timeout=PATIENCE)
            self.assertIsInstance(error, ConnectionRefusedError)
            self.assertIn("Not authorized", str(error))
        with StubBroker(refuse_subscription=True) as broker:
            error = Running(broker).ended.get(timeout=PATIENCE)
            self.assertIsInstance(error, PermissionError)
            self.assertIn("$share/g/jobs/#", str(error))
        self.assertIsInstance(Running(broker).ended.get(timeout=PATIENCE), OSError)

    def test_bad_names_are_errors(self):
        for group in ("", "a/b", "a+", "#"):
            with self.assertRaisesRegex(ValueError, "share name"):
                Worker(group, "a", print)
        with self.assertRaisesRegex(ValueError, "filter"):
            Worker("g", "", print)

    def test_sigterm_stops_the_worker(self):
        with StubBroker("publish") as broker:
            worker = Worker("g", "jobs/#", lambda _: None, on_ready=lambda: os.kill(os.getpid(), signal.SIGTERM))
            before = signal.getsignal(signal.SIGTERM)
            worker.run("127.0.0.1", broker.port)
            self.assertIs(signal.getsignal(signal.SIGTERM), before)
            broker.expect(UNSUBSCRIBE)
            broker.expect(DISCONNECT)
