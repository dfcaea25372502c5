"""A worker of `tenbin-loadgen scenario --worker-command` with Eclipse Paho's unmodified Python client, version 2.

It sends no load reports. It acknowledges each message after processing (Paho's manual acknowledgement).
docs/LOADGEN.md describes its output.

    python3 crates/loadgen/workers/paho_worker.py HOST PORT CLIENT_ID FILTER QOS SERVICE_MS
"""

import queue
import struct
import sys
import threading
import time

import paho.mqtt.client as mqtt

HOST, PORT, CLIENT_ID, FILTER, QOS, SERVICE_MS = sys.argv[1:]
# created_ns, run, stream, sequence; followed by other bytes
STAMP = struct.Struct(">QHII")


def main():
    messages = queue.SimpleQueue()
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, client_id=CLIENT_ID, protocol=mqtt.MQTTv5, manual_ack=True
    )

    def on_connect(client, _userdata, _flags, reason, _properties):
        if reason.is_failure:
            sys.exit(f"refused: {reason}")
        client.subscribe(FILTER, int(QOS))

    def on_subscribe(_client, _userdata, _mid, reasons, _properties):
        if reasons[0].is_failure:
            sys.exit(f"not subscribed: {reasons[0]}")
        print("ready", flush=True)

    client.on_connect = on_connect
    client.on_subscribe = on_subscribe
    client.on_message = lambda _c, _u, message: messages.put((time.monotonic_ns(), message))
    client.connect(HOST, int(PORT), keepalive=60)
    client.loop_start()
    threading.Thread(target=work, args=(client, messages), daemon=True).start()
    sys.stdin.read()  # until it is closed, which asks the worker to end
    client.disconnect()
    client.loop_stop()


def work(client, messages):
    """Processes one message after the other for the service time, acknowledges it and prints its times."""
    service_ns = round(float(SERVICE_MS) * 1e6)
    while True:
        received_ns, message = messages.get()
        taken_ns = time.monotonic_ns()
        sleep_until(taken_ns + service_ns)
        finished_ns = time.monotonic_ns()
        client.ack(message.mid, message.qos)
        if len(message.payload) >= STAMP.size:
            created_ns, run, _stream, sequence = STAMP.unpack_from(message.payload)
            print(run, sequence, created_ns, received_ns, taken_ns, finished_ns, flush=True)


def sleep_until(deadline_ns):
    while (left := deadline_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


main()
