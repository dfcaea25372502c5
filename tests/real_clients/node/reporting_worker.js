// A worker with tenbin-load of clients/js: node reporting_worker.js HOST PORT GROUP FILTER SERVICE_MS [CLIENT_ID].
//
// Prints "ready" when it has subscribed, and the payload of each message when its processing has ended. SIGTERM stops it.
"use strict";

const { setTimeout: sleep } = require("node:timers/promises");
const { pathToFileURL } = require("node:url");

const [host, port, group, filter, serviceMs, clientId] = process.argv.slice(2);

async function main() {
  // NODE_PATH counts for require() alone.
  const { worker } = await import(pathToFileURL(require.resolve("tenbin-load")));
  const running = worker({
    group,
    filter,
    url: `mqtt://${host}:${port}`,
    options: clientId ? { clientId } : {},
    async process({ payload }) {
      await sleep(Number(serviceMs));
      console.log(payload.toString());
    },
  });
  await running.ready;
  console.log("ready");
  await running.ended;
}

main();
