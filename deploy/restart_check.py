#!/usr/bin/env python3
"""Restarts a broker under load and counts the messages that do not arrive.

    restart_check.py HOST:PORT SECONDS COMMAND…

Two workers of a share group with sessions that last, and four publishers at QoS 1, all with Paho. COMMAND restarts the
broker after a third of the time. Exit code 1 if a message is missing that a publisher was told to be accepted.
"""

import subprocess
import sys
import threading
import time

import paho.mqtt.client as mqtt


def client(name, address):
    made = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, name, clean_session=False)
    made.reconnect_delay_set(0.1, 0.5)
    made.max_queued_messages_set(0)
    made.connect(*address)
    return made


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    address, seconds, command = (host, int(port)), float(sys.argv[2]), sys.argv[3:]
    received, lock, copies = set(), threading.Lock(), 0

    def on_message(_client, _data, message):
        nonlocal copies
        with lock:
            copies += message.payload in received
            received.add(message.payload)

    ready = threading.Barrier(3)
    waited = set()

    def on_subscribe(subscriber, *_):
        if subscriber not in waited:
            waited.add(subscriber)
            ready.wait()

    workers = [client(f"restart-check-worker-{number}", address) for number in range(2)]
    for worker in workers:
        worker.on_message = on_message
        worker.on_connect = lambda worker, *_: worker.subscribe("$share/restart-check/restart/#", 1)
        worker.on_subscribe = on_subscribe
        worker.loop_start()
    ready.wait(30)

    sent, stop = [], time.monotonic() + seconds

    def publish(number):
        publisher = client(f"restart-check-publisher-{number}", address)
        payloads, accepted, count = {}, set(), 0
        publisher.on_publish = lambda _client, _data, identifier, *_: accepted.add(identifier)
        publisher.loop_start()
        # While the broker is away, Paho queues messages.
        while time.monotonic() < stop:
            payload = f"{number}/{count}".encode()
            payloads[publisher.publish(f"restart/{number}", payload, 1).mid] = payload
            count += 1
            time.sleep(0.005)
        until = time.monotonic() + 60
        while len(accepted) < len(payloads) and time.monotonic() < until:
            time.sleep(0.01)
        publisher.loop_stop()
        sent.extend(payload for identifier, payload in payloads.items() if identifier in accepted)

    publishers = [threading.Thread(target=publish, args=[number]) for number in range(4)]
    for publisher in publishers:
        publisher.start()
    time.sleep(seconds / 3)
    began = time.monotonic()
    subprocess.run(command, check=True)
    print(f"restarted in {time.monotonic() - began:.1f} s")
    for publisher in publishers:
        publisher.join()
    until = time.monotonic() + 60
    while not received.issuperset(sent) and time.monotonic() < until:
        time.sleep(0.1)
    lost = len(set(sent) - received)
    print(f"{len(sent)} messages accepted, {len(received)} received, {copies} copies, {lost} lost")
    sys.exit(1 if lost or not sent else 0)


if __name__ == "__main__":
    main()
