import { Load } from "./load.js";

const TOPIC = "$load";
const PROPERTY = "load-report";
/** The longest delay of setTimeout. */
const DELAY_MAX = 2 ** 31 - 1;

export class LoadReporter {
  #client;
  #load;
  #timer;
  #isReporting = false;
  /** Whether the last report waits for the socket. */
  #isUnwritten = false;

  constructor(client, { interval = 1000, eager = true, force = false } = {}) {
    this.#client = client;
    this.#load = new Load(interval, eager, () => this.#schedule());
    client.on("connect", (packet) => this.#connected(packet.properties, force));
    client.on("close", () => this.#end());
    if (client.connected) this.#connected(client.serverProperties, force);
  }

  arrived() {
    this.#load.arrived();
  }

  queue(messages) {
    this.#load.queue(messages);
  }

  processing(work) {
    const processing = this.start();
    let result;
    try {
      result = work();
    } catch (error) {
      processing.finish();
      throw error;
    }
    if (typeof result?.then === "function") return Promise.resolve(result).finally(() => processing.finish());
    processing.finish();
    return result;
  }

  start() {
    this.#load.started();
    let since = performance.now();
    return {
      finish: () => {
        if (since !== null) this.#load.finishedAfter(performance.now() - since);
        since = null;
      },
    };
  }

  drain() {
    this.#load.setDraining(true);
  }

  resume() {
    this.#load.setDraining(false);
  }

  snapshot() {
    return this.#load.snapshot();
  }

  #connected(properties, force) {
    const told = [properties?.userProperties?.[PROPERTY] ?? ""].flat()[0];
    this.#isReporting = force || told.split(",").includes("publish");
    this.#isUnwritten = false;
    this.#load.connected(performance.now());
    this.#schedule();
  }

  #end() {
    this.#isReporting = false;
    clearTimeout(this.#timer);
  }

  #schedule() {
    if (!this.#isReporting) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#look(), Math.min(this.#load.left(performance.now()), DELAY_MAX));
  }

  #look() {
    // Unwritten data would make a report stale before it leaves. Its counts go into the next one.
    if (this.#load.turn(performance.now()) && !this.#isUnwritten) this.#send();
    this.#schedule();
  }

  #send() {
    const { queue, processingTime, draining } = this.#load.take();
    const report = { msgsInQueue: queue, processingTimePerMsg: processingTime, ...(draining && { draining }) };
    this.#isUnwritten = true;
    this.#client.publish(TOPIC, JSON.stringify(report), () => {
      this.#isUnwritten = false;
    });
  }
}

export function connectOptions(options = {}) {
  const asked = { protocolVersion: 5, ...options, reschedulePings: false };
  if (asked.protocolVersion === 5) {
    const properties = options.properties ?? {};
    asked.properties = { ...properties, userProperties: { ...properties.userProperties, [PROPERTY]: "?" } };
  }
  return asked;
}
