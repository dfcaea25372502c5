import json
import unittest

from .stub import SUBSCRIBE, StubBroker

try:
    import aiomqtt

    from tenbin_load.aiomqtt import LoadReporter
except ImportError:
    raise unittest.SkipTest("aiomqtt is not installed") from None

import asyncio


class Reports(unittest.IsolatedAsyncioTestCase):
    async def test_messages_of_the_client_are_the_queue(self):
        with StubBroker(version=4) as broker:
            async with aiomqtt.Client("127.0.0.1", broker.port) as client:
                await client.subscribe("jobs/#", qos=1)
                broker.expect(SUBSCRIBE)
                for packet_id in range(1, 8):
                    broker.publish(packet_id, b"job")
                while len(client.messages) < 7:
                    await asyncio.sleep(0.01)
                async with LoadReporter(client, interval=3600, force=True) as reporter:
                    async for _ in client.messages:
                        with reporter.processing():
                            await asyncio.sleep(0)
                        break
                    report = json.loads(await asyncio.to_thread(broker.report))
                    self.assertEqual((report["msgsInQueue"], "draining" in report), (6, False))
                    await asyncio.to_thread(reporter.drain)
                    while "draining" not in json.loads(await asyncio.to_thread(broker.report)):
                        pass

    async def test_reports_need_force(self):
        client = aiomqtt.Client("127.0.0.1")
        with self.assertRaisesRegex(ValueError, "force=True"):
            LoadReporter(client)
