"""Workers of the share group `billing`: one that works, one that rejects, one that hangs.

    python3 workers.py [--port PORT] works rejects hangs

Needs gmqtt (`pip install gmqtt`), whose handler returns the Reason Code of the acknowledgement.
"""

import argparse
import asyncio

import gmqtt

SUCCESS, UNSPECIFIED_ERROR = 0x00, 0x80


async def works(payload):
    return UNSPECIFIED_ERROR if payload == b"unreadable" else SUCCESS


async def rejects(payload):
    return UNSPECIFIED_ERROR


async def hangs(payload):
    await asyncio.Event().wait()


KINDS = {kind.__name__: kind for kind in (works, rejects, hangs)}


async def start(kind, port):
    async def on_message(client, topic, payload, qos, properties):
        code = await kind(payload)
        print(kind.__name__, topic, payload.decode(), "done" if code == SUCCESS else "rejected", flush=True)
        return code

    # Otherwise gmqtt acknowledges a message before the handler has it.
    worker = gmqtt.Client(kind.__name__, optimistic_acknowledgement=False)
    worker.on_message = on_message
    worker.on_connect = lambda client, *_: client.subscribe("$share/billing/invoices/#", qos=1)
    await worker.connect("127.0.0.1", port)
    return worker


async def main():
    parser = argparse.ArgumentParser(description="Workers of the share group billing.")
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--port", type=int, default=1883)
    arguments = parser.parse_args()
    workers = [await start(KINDS[kind], arguments.port) for kind in arguments.kinds]
    print(len(workers), "workers, until Ctrl-C", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
