"""A worker with `tenbin_load` of clients/python: reporting_worker.py HOST PORT GROUP FILTER SERVICE_MS [CLIENT_ID].

Prints "ready" after each subscription, and the payload of each message when its processing has ended. SIGTERM stops it.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "clients/python/src"))

from tenbin_load import Worker  # noqa: E402

host, port, group, topic_filter, service_ms, *client_id = sys.argv[1:]


def process(message):
    time.sleep(float(service_ms) / 1e3)
    print(message.payload.decode(), flush=True)


worker = Worker(group, topic_filter, process, client_id="".join(client_id), on_ready=lambda: print("ready", flush=True))
worker.run(host, int(port))
