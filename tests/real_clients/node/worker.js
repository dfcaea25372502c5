// A worker of a share group with mqtt.js: node worker.js HOST PORT CLIENT_ID FACTOR STYLE.
//
// STYLE is "handle-message" (acknowledges after the work), "on-message" (the library acknowledges before the work, and
// messages queue in the worker) or "on-message-reports" (the same, with load reports to the topic $load). Further
// arguments: "concurrency=N" and "receive-maximum=N" tell the broker so, at 5.0. Otherwise the library's defaults apply,
// 3.1.1 among them. A message's payload is "NUMBER SENT_US WORK_US"; its work takes FACTOR times WORK_US. Prints
// "NUMBER BEGUN_US" when a message's work begins.
"use strict";

const { setTimeout: sleep } = require("node:timers/promises");
const mqtt = require("mqtt");

const [host, port, clientId, factor, style, ...rest] = process.argv.slice(2);
const told = Object.fromEntries(rest.map((argument) => argument.split("=")));

const options = { clientId };
if (rest.length > 0) {
  options.protocolVersion = 5;
  options.properties = {};
  if (told.concurrency) options.properties.userProperties = { concurrency: told.concurrency };
  if (told["receive-maximum"]) options.properties.receiveMaximum = Number(told["receive-maximum"]);
}
const client = mqtt.connect(`mqtt://${host}:${port}`, options);
client.on("connect", () => client.subscribe("$share/g/work", { qos: 1 }));

async function work(payload) {
  const [number, , length] = payload.toString().split(" ");
  console.log(number, Math.round((performance.timeOrigin + performance.now()) * 1000));
  await sleep((length * factor) / 1000);
}

if (style === "handle-message") {
  client.handleMessage = (packet, callback) => work(packet.payload).then(() => callback(), callback);
} else {
  let last = Promise.resolve();
  let [queued, done, busy] = [0, 0, 0];
  client.on("message", (topic, payload) => {
    queued++;
    last = last.then(async () => {
      queued--;
      const begun = performance.now();
      await work(payload);
      busy += performance.now() - begun;
      done++;
    });
  });
  if (style === "on-message-reports") {
    setInterval(() => {
      const report = { msgsInQueue: queued, processingTimePerMsg: done ? busy / done : 0 };
      client.publish("$load", JSON.stringify(report));
      [done, busy] = [0, 0];
    }, 1000);
  }
}
