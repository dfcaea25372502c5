// Exercises a broker with mqtt.js: node client.js URL CA.
//
// The URL is tcp://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT/PATH, wss://HOST:PORT/PATH or unix:PATH. CA is a file
// with the certificate that the broker's must come from.
//
// Prints a line for each step and ends with status 0, or says in one line what went wrong and ends with another
// status.
"use strict";

const fs = require("node:fs");
const mqtt = require("mqtt");

const [url, authority] = process.argv.slice(2);
const address = url.replace(/^unix:/, "mqtt+unix://");
const ca = fs.readFileSync(authority);
const PATIENCE = 20_000;
const VERSIONS = { "5.0": 5, "3.1.1": 4 };

/** A client whose messages can be waited for. */
class Client {
  static async connect(version, clientId, options = {}) {
    const self = new Client();
    const isV5 = version === "5.0";
    const kept = isV5 && options.clean === false ? { properties: { sessionExpiryInterval: 3600 } } : {};
    self.waiting = [];
    self.messages = [];
    self.client = mqtt.connect(address, {
      ca, clientId, protocolVersion: VERSIONS[version], reconnectPeriod: 0, clean: true, ...kept, ...options,
    });
    self.client.on("message", (topic, payload, packet) => {
      const message = { topic, payload, qos: packet.qos, retain: packet.retain, properties: packet.properties };
      const taker = self.waiting.shift();
      if (taker) taker(message);
      else self.messages.push(message);
    });
    const connack = await patiently("CONNACK", new Promise((resolve, reject) => {
      self.client.once("connect", resolve);
      self.client.once("error", reject);
    }));
    self.client.on("error", fail);
    self.sessionPresent = connack.sessionPresent;
    return self;
  }

  async subscribe(topic, qos, options = {}) {
    const granted = await patiently("SUBACK", this.client.subscribeAsync(topic, { qos, ...options }));
    check(granted.length === 1 && granted[0].qos === qos, `granted ${JSON.stringify(granted)}, asked ${qos}`);
  }

  publish(topic, payload, qos, options = {}) {
    return patiently(`the end of a QoS ${qos} message`, this.client.publishAsync(topic, payload, { qos, ...options }));
  }

  receive() {
    const message = this.messages.shift();
    return message ?? patiently("a message", new Promise((resolve) => this.waiting.push(resolve)));
  }

  async receiveTexts(count) {
    const texts = [];
    while (texts.length < count) texts.push((await this.receive()).payload.toString());
    return texts;
  }

  disconnect() {
    return patiently("the end of a connection", this.client.endAsync());
  }

  /** Ends the connection without DISCONNECT. */
  cut() {
    this.client.stream.destroy();
  }
}

function check(holds, what) {
  if (!holds) throw new Error(what);
}

function checkEqual(got, expected, what) {
  check(JSON.stringify(got) === JSON.stringify(expected), `${what}: ${JSON.stringify(got)}`);
}

async function patiently(what, promise) {
  let timer;
  const timeout = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} did not come`)), PATIENCE);
  });
  try {
    return await Promise.race([promise, timeout]);
  } finally {
    clearTimeout(timer);
  }
}

function numbers(from, to) {
  return Array.from({ length: to - from }, (_, index) => String(from + index));
}

async function publishAndReceive(version) {
  const subscriber = await Client.connect(version, "node-subscriber");
  const publisher = await Client.connect(version, "node-publisher");
  await subscriber.subscribe("node/+", 2);
  for (const qos of [0, 1, 2]) {
    for (const size of [0, 100, 100_000]) {
      await publisher.publish("node/a", Buffer.alloc(size, qos), qos);
      const message = await subscriber.receive();
      const got = [message.topic, message.qos, message.retain, message.payload.equals(Buffer.alloc(size, qos))];
      checkEqual(got, ["node/a", qos, false, true], "message");
    }
  }
  for (const qos of [0, 1, 2]) {
    const sent = numbers(0, 200).map((number) => publisher.publish("node/order", number, qos));
    checkEqual(await subscriber.receiveTexts(200), numbers(0, 200), `order at QoS ${qos}`);
    await Promise.all(sent);
  }
  await patiently("UNSUBACK", subscriber.client.unsubscribeAsync("node/+"));
  await publisher.publish("node/a", "nobody", 1);
  await subscriber.disconnect();
  check(subscriber.messages.length === 0, "a message after UNSUBSCRIBE");
  await publisher.disconnect();
}

async function retained(version) {
  const publisher = await Client.connect(version, "node-publisher");
  await publisher.publish("node-retained", "state", 1, { retain: true });
  const subscriber = await Client.connect(version, "node-subscriber");
  await subscriber.subscribe("node-retained", 1);
  const message = await subscriber.receive();
  checkEqual([message.payload.toString(), message.retain], ["state", true], "retained message");
  await publisher.publish("node-retained", "", 1, { retain: true });
  checkEqual(await subscriber.receiveTexts(1), [""], "the removal is forwarded");
  await subscriber.disconnect();
  await publisher.disconnect();
}

async function will(version) {
  const heir = await Client.connect(version, "node-heir");
  await heir.subscribe("node-will", 2);
  const polite = { will: { topic: "node-will", payload: "polite", qos: 1, retain: false } };
  await (await Client.connect(version, "node-polite", polite)).disconnect();
  const mortal = { will: { topic: "node-will", payload: "gone", qos: 2, retain: false } };
  (await Client.connect(version, "node-mortal", mortal)).cut();
  const message = await heir.receive();
  checkEqual([message.payload.toString(), message.qos], ["gone", 2], "will");
  await heir.disconnect();
}

async function shared(version) {
  const members = [await Client.connect(version, "node-member-1"), await Client.connect(version, "node-member-2")];
  for (const member of members) await member.subscribe("$share/node/node-work", 1);
  const publisher = await Client.connect(version, "node-publisher");
  for (const number of numbers(0, 20)) await publisher.publish("node-work", number, 1);
  const texts = [...(await members[0].receiveTexts(10)), ...(await members[1].receiveTexts(10))];
  checkEqual(texts.map(Number).sort((a, b) => a - b).map(String), numbers(0, 20), "shared messages");
  for (const client of [...members, publisher]) await client.disconnect();
}

async function session(version) {
  const first = await Client.connect(version, "node-session", { clean: false });
  check(!first.sessionPresent, "a session before the first connection");
  await first.subscribe("node-session", 2);
  await first.disconnect();
  const publisher = await Client.connect(version, "node-publisher");
  for (const number of numbers(0, 10)) await publisher.publish("node-session", number, Number(number) < 5 ? 1 : 2);
  const again = await Client.connect(version, "node-session", { clean: false });
  check(again.sessionPresent, "the session is gone");
  const texts = (await again.receiveTexts(10)).map(Number).sort((a, b) => a - b).map(String);
  checkEqual(texts, numbers(0, 10), "messages that waited");
  await again.disconnect();
  await (await Client.connect(version, "node-session")).disconnect();
  await publisher.disconnect();
}

async function properties(version) {
  if (version !== "5.0") return;
  const client = await Client.connect(version, "node-properties");
  await client.subscribe("node-properties", 1, { rap: true, properties: { subscriptionIdentifier: 42 } });
  const sent = {
    payloadFormatIndicator: true,
    contentType: "text/plain",
    responseTopic: "reply",
    correlationData: Buffer.from([0, 255]),
    userProperties: { b: ["2", "2"], a: "1" },
  };
  await client.publish("node-properties", "x", 1, { properties: { ...sent, messageExpiryInterval: 100 } });
  const got = (await client.receive()).properties;
  checkEqual(got.subscriptionIdentifier, 42, "subscription identifier");
  for (const name of Object.keys(sent)) checkEqual(got[name], sent[name], name);
  check(got.messageExpiryInterval >= 95 && got.messageExpiryInterval <= 100, `expiry ${got.messageExpiryInterval}`);
  await client.disconnect();
}

/** The library restores 9,000 subscriptions after the loss of a connection. */
async function manySubscriptions(version) {
  const count = 9000;
  const subscriber = await Client.connect(version, "node-many", { reconnectPeriod: 50 });
  const topics = numbers(0, count).map((number) => `node-many/${number}`);
  const granted = await patiently("SUBACK", subscriber.client.subscribeAsync(topics, { qos: 0 }));
  check(granted.length === count && granted.every(({ qos }) => qos === 0), `${granted.length} granted`);
  subscriber.client.removeListener("error", fail);
  const back = new Promise((resolve) => subscriber.client.once("connect", resolve));
  subscriber.cut();
  await patiently("another connection", back);
  const publisher = await Client.connect(version, "node-publisher");
  // Subscriptions are restored in order.
  while (subscriber.messages.length === 0) {
    await publisher.publish(topics[count - 1], "", 1);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  const seen = new Set();
  subscriber.client.on("message", (topic) => seen.add(topic));
  for (const topic of topics) publisher.publish(topic, "", 0);
  await publisher.publish(topics[count - 1], "", 1);
  for (let waited = 0; seen.size < count && waited < PATIENCE; waited += 10) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  checkEqual(seen.size, count, "restored subscriptions");
  await subscriber.disconnect();
  await publisher.disconnect();
}

function fail(error) {
  console.error(`failed: ${step ?? "start"}: ${error?.message ?? error}`);
  process.exit(1);
}

let step;

async function main() {
  for (const version of Object.keys(VERSIONS)) {
    for (const run of [publishAndReceive, retained, will, shared, session, properties, manySubscriptions]) {
      step = `${run.name} at ${version}`;
      await run(version);
      console.log(`${step}: ok`);
    }
  }
}

main().then(() => process.exit(0), fail);
