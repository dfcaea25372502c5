import mqtt from "mqtt";

import { LoadReporter, connectOptions } from "./reporter.js";

/** Reason Codes of a rejection that MQTT.js sends. */
const REJECTIONS = [128, 131, 135, 144, 145, 151, 153];
const SIGNALS = ["SIGTERM", "SIGINT"];

export function worker(options) {
  return new Worker(options);
}

class Worker {
  #topic;
  #process;
  /** Number of the connection. A Packet Identifier means another message on the next one. */
  #connection = 0;
  /** The end of the last message's processing. */
  #last = Promise.resolve();
  #isReady = false;
  #isStopping = false;
  #settle = {};
  #onSignal = () => this.stop().catch(() => {}); // `ended` has the error.

  constructor({ group, filter, process, url, options = {}, interval, eager }) {
    if (!group || /[/+#]/.test(group)) throw new RangeError(`share name "${group}" is empty, or has one of / + #`);
    if (!filter) throw new RangeError("the filter is empty");
    if (typeof process !== "function") throw new TypeError(`process is no function: ${process}`);
    if ((options.protocolVersion ?? 5) !== 5) {
      throw new RangeError(`protocolVersion ${options.protocolVersion}: a worker needs 5`);
    }
    this.#topic = `$share/${group}/${filter}`;
    this.#process = process;
    this.ready = new Promise((resolve, reject) => Object.assign(this.#settle, { ready: resolve, notReady: reject }));
    this.ready.catch(() => {}); // `ended` has the same error.
    this.ended = new Promise((resolve, reject) => Object.assign(this.#settle, { ended: resolve, failed: reject }));
    this.client = mqtt.connect(url, {
      ...connectOptions(options),
      clean: true,
      resubscribe: false,
      reconnectOnConnackError: true,
      customHandleAcks: (topic, payload, packet, done) => this.#take(topic, payload, packet, (code) => done(null, code)),
    });
    // It is called after an acknowledgement, and for messages of QoS 0.
    this.client.handleMessage = (packet, done) => {
      if (packet.qos > 0) done();
      else this.#take(packet.topic, packet.payload, packet, () => done());
    };
    this.reporter = new LoadReporter(this.client, { interval, eager });
    this.client.on("connect", () => this.#subscribe());
    this.client.on("close", () => {
      this.#connection++;
      this.reporter.queue(0);
    });
    // Later errors end a connection, and MQTT.js makes another one.
    this.client.on("error", (error) => this.#isReady || this.#fail(error));
    for (const signal of SIGNALS) globalThis.process?.once?.(signal, this.#onSignal);
  }

  async stop() {
    if (!this.#isStopping) {
      this.#isStopping = true;
      this.reporter.drain();
      // MQTT.js reads UNSUBACK when the messages before it are processed. An error means that the connection has ended.
      if (this.client.connected) await this.client.unsubscribeAsync(this.#topic).catch(() => {});
      await this.#last;
      await this.client.endAsync(!this.client.connected);
      this.#forgetSignals();
      this.#settle.notReady(new Error("the worker was stopped"));
      this.#settle.ended();
    }
    return this.ended;
  }

  #subscribe() {
    if (this.#isStopping) return;
    this.client.subscribe(this.#topic, { qos: 1 }, (error) => {
      if (error?.packet) this.#fail(new Error(`the broker refuses the subscription ${this.#topic}: ${error.message}`));
      if (error) return; // Without SUBACK, the connection has ended.
      this.#isReady = true;
      this.#settle.ready();
    });
  }

  /** Processes a message after the one before it, and calls `acknowledge` if its connection still stands. */
  #take(topic, payload, packet, acknowledge) {
    const connection = this.#connection;
    this.reporter.arrived();
    this.#last = this.#last.then(async () => {
      if (connection !== this.#connection) return; // Another worker gets it.
      let code = 0;
      const reject = (reason = 128) => {
        if (!REJECTIONS.includes(reason)) throw new RangeError(`Reason Code ${reason}: MQTT.js sends ${REJECTIONS}`);
        code = reason;
      };
      const pings = this.#ping();
      const processing = this.reporter.start();
      try {
        await this.#process({ topic, payload, packet, reject });
        if (connection === this.#connection) acknowledge(code);
      } catch (error) {
        this.#fail(error);
      } finally {
        processing.finish();
        clearInterval(pings);
      }
    });
  }

  /** Pings during a message, in which MQTT.js reads no answers. */
  #ping() {
    const { client } = this;
    if (!client.keepalive) return undefined;
    return setInterval(() => {
      if (!client.connected) return;
      client.sendPing();
      client.reschedulePing(true);
    }, (client.keepalive * 1000) / 2);
  }

  #fail(error) {
    this.#isStopping = true;
    this.#connection++; // Nothing more is processed or acknowledged.
    this.client.end(true);
    this.#forgetSignals();
    this.#settle.notReady(error);
    this.#settle.failed(error);
  }

  #forgetSignals() {
    for (const signal of SIGNALS) globalThis.process?.removeListener?.(signal, this.#onSignal);
  }
}
