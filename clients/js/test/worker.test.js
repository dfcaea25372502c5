import assert from "node:assert/strict";
import { EventEmitter, once } from "node:events";
import { test } from "node:test";

import { worker } from "../index.js";
import { StubBroker } from "./stub.js";

/** A worker whose messages wait until the test lets them end. */
class Running {
  #steps = new EventEmitter();

  constructor(t, broker, options = {}) {
    this.worker = worker({
      group: "g",
      filter: "jobs/#",
      url: broker.url,
      interval: 3_600_000,
      process: (message) =>
        new Promise((resolve, reject) => this.#steps.emit("begun", { message, end: resolve, fail: reject })),
      ...options,
      options: { reconnectPeriod: 10, ...options.options },
    });
    t.after(() => this.worker.client.end(true));
  }

  async begun() {
    const [step] = await once(this.#steps, "begun");
    return step;
  }
}

async function start(t, carriers, options) {
  const broker = await StubBroker.start(t, { carriers });
  const running = new Running(t, broker, options);
  await running.worker.ready;
  return { broker, running };
}

/** Packets of the client until one with this command, and without reports. */
async function until(broker, cmd) {
  const packets = [];
  for (;;) {
    const packet = await broker.next();
    if (packet.cmd !== "publish") packets.push(packet);
    if (packet.cmd === cmd) return packets;
  }
}

test("a message is acknowledged after its processing", async (t) => {
  const { broker, running } = await start(t, "publish");
  const [, subscribe] = await until(broker, "subscribe");
  assert.deepEqual(subscribe.subscriptions.map(({ topic, qos }) => [topic, qos]), [["$share/g/jobs/#", 1]]);
  broker.publish(1, "one");
  broker.publish(2, "two");
  const one = await running.begun();
  assert.equal(one.message.payload.toString(), "one");
  assert.equal(one.message.topic, "jobs/1");
  const stopped = running.worker.stop();
  await until(broker, "unsubscribe");
  assert.equal((await broker.report()).draining, true, "during the message");
  const two = running.begun();
  one.end();
  (await two).end();
  await stopped;
  const packets = await until(broker, "disconnect");
  const kinds = packets.map(({ cmd, messageId, reasonCode }) => (cmd === "puback" ? [cmd, messageId, reasonCode] : cmd));
  assert.deepEqual(kinds, [["puback", 1, 0], ["puback", 2, 0], "disconnect"]);
});

test("a rejected message gets its Reason Code", async (t) => {
  const { broker, running } = await start(t);
  for (const [code, expected] of [[undefined, 128], [131, 131]]) {
    broker.publish(1, "one");
    const { message, end } = await running.begun();
    assert.throws(() => message.reject(129), /129/);
    message.reject(code);
    end();
    assert.equal((await broker.expect("puback")).reasonCode, expected);
  }
});

test("messages of QoS 0 are processed in their turn", async (t) => {
  const { broker, running } = await start(t);
  for (const payload of ["one", "two"]) broker.publish(undefined, payload, 0);
  for (const payload of ["one", "two"]) {
    const { message, end } = await running.begun();
    assert.equal(message.payload.toString(), payload);
    end();
  }
});

test("a Packet Identifier of a lost connection is not acknowledged", async (t) => {
  const { broker, running } = await start(t);
  await broker.expect("subscribe");
  broker.publish(1, "old");
  broker.publish(2, "old");
  const old = await running.begun();
  broker.cut();
  await broker.expect("subscribe");
  const next = running.begun();
  broker.publish(3, "new");
  old.end();
  const { message, end } = await next;
  assert.equal(message.payload.toString(), "new", "the second one went to others");
  end();
  assert.deepEqual((await until(broker, "puback")).map(({ messageId }) => messageId), [3]);
});

test("a message may take longer than Keep Alive", async (t) => {
  const { broker, running } = await start(t, undefined, { options: { keepalive: 1 } });
  await broker.expect("subscribe");
  broker.publish(1, "long");
  const { end } = await running.begun();
  for (let ping = 0; ping < 5; ping++) assert.equal((await broker.next()).cmd, "pingreq");
  end();
  assert.equal((await broker.expect("puback")).messageId, 1);
});

test("an error ends the worker, and the message is not acknowledged", async (t) => {
  const { broker, running } = await start(t);
  await broker.expect("subscribe");
  broker.publish(1, "one");
  const { fail } = await running.begun();
  fail(new Error("bad"));
  await assert.rejects(running.worker.ended, /bad/);
  await assert.rejects(running.worker.stop(), /bad/);
});

test("refusals are errors", async (t) => {
  const broker = await StubBroker.start(t);
  broker.connack = 0x87;
  const refused = new Running(t, broker).worker;
  await assert.rejects(refused.ended, /Not authorized/);
  await assert.rejects(refused.ready, /Not authorized/);
  Object.assign(broker, { connack: 0, suback: 0x87 });
  await assert.rejects(new Running(t, broker).worker.ended, /\$share\/g\/jobs\/#.*Not authorized/);
  await assert.rejects(new Running(t, { url: "mqtt://127.0.0.1:1" }).worker.ended, /ECONNREFUSED/);
});

test("a refusal of a later connection is none", async (t) => {
  const { broker, running } = await start(t);
  await broker.expect("connect");
  broker.connack = 0x89;
  broker.cut();
  await broker.expect("connect");
  broker.connack = 0;
  await broker.expect("subscribe");
  await running.worker.stop();
});

test("a worker without connection stops", async (t) => {
  const { broker, running } = await start(t, undefined, { options: { reconnectPeriod: 3_600_000 } });
  const closed = once(running.worker.client, "close");
  broker.cut();
  await closed;
  await running.worker.stop();
});

test("SIGTERM stops the worker", async (t) => {
  const { broker, running } = await start(t, "publish");
  process.kill(process.pid, "SIGTERM");
  await running.worker.ended;
  await broker.expect("unsubscribe");
  await broker.expect("disconnect");
  assert.equal(process.listenerCount("SIGTERM"), 0);
});

test("bad options are named", () => {
  const good = { group: "g", filter: "a", url: "mqtt://127.0.0.1:1", process() {} };
  const cases = [
    [{ group: "" }, /share name ""/],
    [{ group: "a/b" }, /share name "a\/b"/],
    [{ filter: "" }, /filter/],
    [{ process: 1 }, /process is no function: 1/],
    [{ options: { protocolVersion: 4 } }, /protocolVersion 4/],
  ];
  for (const [bad, message] of cases) assert.throws(() => worker({ ...good, ...bad }), message);
});
