"""Starts and stops worker processes by the broker's figure, as KEDA and a HorizontalPodAutoscaler do with workers.yaml.

    python3 deploy/keda/rehearse.py PROGRAM [SECONDS]

PROGRAM is `tenbin`. The load is 10, 300, 10 and 0 messages/s, each for SECONDS (150). A worker takes 25 ms for a message. Prints
each change, and fails if a goal is missed: no message lost, the right number of workers at the end of each load, at any time at most one
more than the load and the clearing of the backlog within a minute need, at most 3 changes for each change of the load, and waits of at most
twice the waits with as many workers from the start.
Needs Eclipse Paho (`pip install paho-mqtt`).
"""

import json
import math
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import paho.mqtt.client as mqtt

PROGRAM, SECONDS = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 150
SERVICE_MS, BUSY = 25, 0.8
ASK_EVERY, ASK_AT_ZERO, SCALE_DOWN_AFTER = 15, 5, 60  # as a HorizontalPodAutoscaler, and as in workers.yaml
STAMP = struct.Struct(">QHII")  # created_ns, run, stream, sequence
WORKER = os.path.join(os.path.dirname(__file__), "../../crates/loadgen/workers/paho_worker.py")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Broker:
    def __init__(self, directory):
        self.port, self.admin = free_port(), free_port()
        config = os.path.join(directory, "tenbin.toml")
        with open(config, "w") as file:
            file.write('[[share]]\ngroup = "pool"\nfilter = "jobs/#"\nkeep_seconds = 604800\n')
            file.write(f'[admin]\naddress = "127.0.0.1:{self.admin}"\n')
        data = os.path.join(directory, "data")
        arguments = ["broker", "--config", config, "--data", data, "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while "admin HTTP" not in self.process.stdout.readline():
            assert self.process.poll() is None, "the broker has ended"
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.token = open(os.path.join(data, "admin.token")).read().strip()

    def scale(self):
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin}/api/v1/groups/pool/jobs%2F%23/scale")
        request.add_header("Authorization", f"Bearer {self.token}")
        return json.load(urllib.request.urlopen(request, timeout=10))


class Workers:
    """Worker processes, and the waits of the messages that they processed."""

    def __init__(self, broker):
        self.broker, self.running, self.started, self.waits = broker, [], 0, {}

    def set(self, number):
        while len(self.running) < number:
            self.started += 1
            arguments = ["127.0.0.1", str(self.broker.port), f"worker-{self.started}", "$share/pool/jobs/#", "1", str(SERVICE_MS)]
            worker = subprocess.Popen(
                [sys.executable, "-B", WORKER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            reader = threading.Thread(target=self.read, args=(worker,), daemon=True)
            reader.start()
            self.running.append((worker, reader))
        while len(self.running) > number:
            worker, reader = self.running.pop()
            worker.stdin.close()  # asks it to end
            reader.join()
            worker.wait()

    def read(self, worker):
        for line in worker.stdout:
            if line.strip() != "ready":
                _run, sequence, created, _received, taken, _finished = map(int, line.split())
                self.waits[sequence] = (created, (taken - created) / 1e6)


class Publisher:
    def __init__(self, broker):
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="publisher", protocol=mqtt.MQTTv5)
        self.client.max_inflight_messages_set(1000)
        self.client.connect("127.0.0.1", broker.port)
        self.client.loop_start()
        self.rate, self.published = 0, 0
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        due = time.monotonic()
        while True:
            if not self.rate:
                time.sleep(0.05)
                due = time.monotonic()
                continue
            due += 1 / self.rate
            time.sleep(max(0, due - time.monotonic()))
            self.client.publish("jobs/1", STAMP.pack(time.monotonic_ns(), 0, 0, self.published), qos=1)
            self.published += 1


def right_number(rate):
    return math.ceil(rate * SERVICE_MS / 1000 / BUSY)


def percentile_99(waits):
    return statistics.quantiles(waits, n=100)[98]


def follow(broker, workers, publisher, begin):
    """Follows the figure for one load; returns the numbers of workers that it set, and the numbers that were needed."""
    wanted, changes, needed, until = [], [], [], time.monotonic() + SECONDS
    while time.monotonic() < until:
        scale = broker.scale()
        desired = scale.get("desired")
        now = time.monotonic()
        if desired is not None:
            wanted = [(at, number) for at, number in wanted if at > now - SCALE_DOWN_AFTER] + [(now, desired)]
            number = max(number for _, number in wanted)
            if number != len(workers.running):
                print(f"{now - begin:6.1f} s, {publisher.rate:3} messages/s: {len(workers.running)} -> {number} workers", flush=True)
                workers.set(number)
                changes.append(number)
                needed.append(right_number(publisher.rate + scale["backlog"] / 60))
        time.sleep(ASK_EVERY if workers.running else ASK_AT_ZERO)
    return changes, needed


def waits_of(workers, begin_ns, end_ns):
    return [wait for created, wait in list(workers.waits.values()) if begin_ns <= created < end_ns]


def play_fixed(number, rate):
    """Waits with this number of workers from the start."""
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(directory)
        workers, publisher = Workers(broker), Publisher(broker)
        try:
            workers.set(number)
            time.sleep(5)
            publisher.rate, begin = rate, time.monotonic_ns()
            time.sleep(30)
            publisher.rate = 0
            time.sleep(2)
            return percentile_99(waits_of(workers, begin + 10 * 10**9, time.monotonic_ns()))
        finally:
            workers.set(0)
            broker.process.send_signal(signal.SIGTERM)
            broker.process.wait()


def main():
    missed = []
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(directory)
        workers, publisher, begin = Workers(broker), Publisher(broker), time.monotonic()
        settled, before = {}, 0
        try:
            for rate in (10, 300, 10, 0):
                publisher.rate = rate
                changes, needed = follow(broker, workers, publisher, begin)
                right, end = right_number(rate), time.monotonic_ns()
                added = zip(changes, needed, [before, *changes])
                if len(changes) > 3 or any(number > max(need + 1, last) for number, need, last in added):
                    missed.append(f"{rate} messages/s: changes {changes}, needed {needed}")
                if not right <= len(workers.running) <= right + 1:
                    missed.append(f"{rate} messages/s: {len(workers.running)} workers at the end, right {right}")
                if rate:
                    settled[rate] = percentile_99(waits_of(workers, end - int(SECONDS / 4 * 1e9), end))
                before = len(workers.running)
                print(f"{rate} messages/s: changes {changes}, needed then {needed}, {before} workers, right {right}", flush=True)
            workers.set(1)
            until = time.monotonic() + 30
            while len(workers.waits) < publisher.published and time.monotonic() < until:
                time.sleep(0.1)
            lost = publisher.published - len(workers.waits)
            print(f"published {publisher.published}, lost {lost}")
            if lost:
                missed.append(f"{lost} messages are lost")
        finally:
            workers.set(0)
            broker.process.send_signal(signal.SIGTERM)
            broker.process.wait()
    for rate, wait in settled.items():
        fixed = play_fixed(right_number(rate), rate)
        print(f"{rate} messages/s: wait p99 {wait:.1f} ms, with the right number from the start {fixed:.1f} ms")
        if wait > 2 * fixed + 1:
            missed.append(f"{rate} messages/s: wait p99 {wait:.1f} ms, with the right number {fixed:.1f} ms")
    sys.exit("missed: " + "; ".join(missed) if missed else 0)


main()
