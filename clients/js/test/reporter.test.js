import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import mqtt from "mqtt";

import { LoadReporter, connectOptions } from "../index.js";
import { StubBroker } from "./stub.js";

function connect(t, broker, options = {}) {
  const client = mqtt.connect(broker.url, connectOptions({ protocolVersion: broker.version, ...options }));
  t.after(() => client.end(true));
  return client;
}

test("a broker that offers publish gets reports", async (t) => {
  const broker = await StubBroker.start(t, { carriers: "pingreq,ack,publish" });
  const client = connect(t, broker);
  const reporter = new LoadReporter(client, { interval: 50 });
  assert.deepEqual({ ...(await broker.expect("connect")).properties.userProperties }, { "load-report": "?" });
  assert.deepEqual(await broker.report(), { msgsInQueue: 0, processingTimePerMsg: 0 });
  reporter.queue(3);
  assert.equal(reporter.processing(() => 7), 7);
  let report;
  do report = await broker.report();
  while (report.processingTimePerMsg === 0);
  assert.equal(report.msgsInQueue, 2);
  reporter.drain();
  while (!(await broker.report()).draining);
});

test("processing measures until a promise is settled, and after errors", async (t) => {
  const broker = await StubBroker.start(t, { carriers: "publish" });
  const reporter = new LoadReporter(connect(t, broker), { interval: 3_600_000 });
  let settle;
  const work = reporter.processing(() => new Promise((resolve) => (settle = resolve)));
  assert.equal(reporter.snapshot().processingTime, 0);
  settle("done");
  assert.equal(await work, "done");
  const first = reporter.snapshot().processingTime;
  assert.ok(first > 0);
  assert.throws(() => reporter.processing(() => assert.fail("bad")), /bad/);
  assert.notEqual(reporter.snapshot().processingTime, first);
  await assert.rejects(reporter.processing(() => Promise.reject(new Error("late"))), /late/);
  const processing = reporter.start();
  processing.finish();
  const last = reporter.snapshot().processingTime;
  processing.finish();
  assert.equal(reporter.snapshot().processingTime, last, "it counts once");
});

test("the first message is reported before the interval", async (t) => {
  const broker = await StubBroker.start(t, { carriers: "publish" });
  const client = connect(t, broker);
  const reporter = new LoadReporter(client, { interval: 3_600_000 });
  await once(client, "connect");
  reporter.processing(() => {});
  assert.ok((await broker.report()).processingTimePerMsg > 0);
});

for (const carriers of [undefined, "", "pingreq,ack", "publisher"]) {
  test(`a broker that offers ${carriers} gets none`, async (t) => {
    await assertSilent(t, await StubBroker.start(t, { carriers }));
  });
}

test("3.1.1 needs force", async (t) => {
  await assertSilent(t, await StubBroker.start(t, { version: 4 }));
  const broker = await StubBroker.start(t, { version: 4 });
  new LoadReporter(connect(t, broker), { interval: 10, force: true });
  assert.equal((await broker.report()).msgsInQueue, 0);
});

/** Asserts that a Keep Alive passes, with a draining worker, without a report. */
async function assertSilent(t, broker) {
  const client = connect(t, broker, { keepalive: 1 });
  const reporter = new LoadReporter(client, { interval: 10 });
  await once(client, "connect");
  reporter.processing(() => {});
  reporter.drain();
  assert.equal((await broker.next()).cmd, "connect");
  assert.equal((await broker.next()).cmd, "pingreq");
}

test("reports do not postpone pings", async (t) => {
  const broker = await StubBroker.start(t, { carriers: "publish" });
  new LoadReporter(connect(t, broker, { keepalive: 1 }), { interval: 100 });
  await broker.report();
  await broker.expect("pingreq");
});

test("the next connection is reported to as well", async (t) => {
  const broker = await StubBroker.start(t, { carriers: "publish" });
  new LoadReporter(connect(t, broker, { reconnectPeriod: 10, keepalive: 1 }), { interval: 20 });
  await broker.report();
  broker.cut();
  await broker.expect("connect");
  await broker.report();
  broker.carriers = undefined;
  broker.cut();
  await broker.expect("connect");
  assert.equal((await broker.next()).cmd, "pingreq", "this broker offers nothing");
});

test("a reporter of a connected client knows the offer", async (t) => {
  const broker = await StubBroker.start(t, { carriers: "publish" });
  const client = connect(t, broker);
  await once(client, "connect");
  new LoadReporter(client, { interval: 10 });
  await broker.report();
});

test("options of the application stay", () => {
  const options = { clientId: "a", properties: { receiveMaximum: 7, userProperties: { b: "c" } } };
  assert.deepEqual(connectOptions(options), {
    protocolVersion: 5,
    clientId: "a",
    reschedulePings: false,
    properties: { receiveMaximum: 7, userProperties: { b: "c", "load-report": "?" } },
  });
  assert.deepEqual(connectOptions({ protocolVersion: 4 }), { protocolVersion: 4, reschedulePings: false });
});
