import { EventEmitter, on } from "node:events";
import net from "node:net";
import mqttPacket from "mqtt-packet";

/** A broker for one client, which records packets and answers as the test says. */
export class StubBroker {
  #server;
  #socket;
  #packets = new EventEmitter();
  #received;
  /** Reason Codes of CONNACK and SUBACK. */
  connack = 0;
  suback = 1;

  /** `carriers` is the value of `load-report` in CONNACK, if any. */
  static async start(test, { carriers, version = 5 } = {}) {
    const broker = new StubBroker();
    Object.assign(broker, { carriers, version });
    broker.#received = on(broker.#packets, "packet");
    broker.#server = net.createServer((socket) => broker.#serve(socket));
    await new Promise((resolve) => broker.#server.listen(0, "127.0.0.1", resolve));
    broker.url = `mqtt://127.0.0.1:${broker.#server.address().port}`;
    test.after(() => {
      broker.#server.close();
      broker.cut();
    });
    return broker;
  }

  /** Ends the connection without DISCONNECT. */
  cut() {
    this.#socket?.destroy();
  }

  async next() {
    const { value } = await this.#received.next();
    return value[0];
  }

  /** Returns the next packet with this command, and drops packets before it. */
  async expect(cmd) {
    for (;;) {
      const packet = await this.next();
      if (packet.cmd === cmd) return packet;
    }
  }

  async report() {
    const packet = await this.expect("publish");
    if (packet.topic !== "$load") throw new Error(`topic ${packet.topic}`);
    return JSON.parse(packet.payload.toString());
  }

  publish(messageId, payload, qos = 1) {
    this.#send({ cmd: "publish", topic: "jobs/1", payload, qos, messageId, dup: false, retain: false });
  }

  #send(packet) {
    this.#socket.write(mqttPacket.generate(packet, { protocolVersion: this.version }));
  }

  #serve(socket) {
    this.#socket = socket;
    const parser = mqttPacket.parser({ protocolVersion: this.version });
    socket.on("data", (data) => parser.parse(data));
    socket.on("error", () => {});
    parser.on("packet", (packet) => {
      this.#answer(packet);
      this.#packets.emit("packet", packet);
    });
  }

  #answer({ cmd, messageId }) {
    if (cmd === "connect") {
      const properties = this.carriers === undefined ? {} : { userProperties: { "load-report": this.carriers } };
      this.#send({ cmd: "connack", sessionPresent: false, reasonCode: this.connack, returnCode: 0, properties });
    } else if (cmd === "subscribe") this.#send({ cmd: "suback", messageId, granted: [this.suback] });
    else if (cmd === "unsubscribe") this.#send({ cmd: "unsuback", messageId, granted: [0] });
    else if (cmd === "pingreq") this.#send({ cmd: "pingresp" });
  }
}
