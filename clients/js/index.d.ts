import type { IClientOptions, IPublishPacket, MqttClient } from "mqtt";

/** A load report. */
export interface Report {
  /** Messages that wait in the worker. */
  queue: number;
  /** Mean time of a message in milliseconds since the last report; 0 if none was processed. */
  processingTime: number;
  draining: boolean;
}

export interface ReporterOptions {
  /** Milliseconds between reports; default 1000. */
  interval?: number;
  /** Whether reports are also sent early after a large change; default true. */
  eager?: boolean;
  /** Whether any broker gets reports, for MQTT 3.1.1; default false. */
  force?: boolean;
}

/** Measurement of one message. */
export interface Processing {
  /** Adds the time to the mean. Later calls do nothing. */
  finish(): void;
}

/**
 * Reports the load of a worker to the broker, as messages to `$load`.
 *
 * It is silent unless the broker's CONNACK offers `publish`, for which the client asks with {@link connectOptions}.
 */
export class LoadReporter {
  constructor(client: MqttClient, options?: ReporterOptions);
  /** Adds a message to the queue. */
  arrived(): void;
  /**
   * Sets the queue's length, where the application has a queue: call it after adding messages. {@link processing} and
   * {@link start} take a message out.
   */
  queue(messages: number): void;
  /** Takes a message out of the queue, and measures `work`, or the promise that it returns. */
  processing<T>(work: () => T): T;
  /** Takes a message out of the queue, and measures until `finish()`. */
  start(): Processing;
  /** Asks for no further messages until {@link resume}. */
  drain(): void;
  /** Asks for messages again. */
  resume(): void;
  /** The present values. */
  snapshot(): Report;
}

/**
 * Options of `mqtt.connect()` that ask the broker for its carriers of load reports, at MQTT 5.0.
 *
 * Reports do not postpone pings, which show whether the broker is still there.
 */
export function connectOptions(options?: IClientOptions): IClientOptions;

export interface WorkerMessage {
  topic: string;
  payload: Buffer;
  packet: IPublishPacket;
  /**
   * Rejects the message with this Reason Code when its processing ends: 128 (the default), 131, 135, 144, 145, 151 or
   * 153. Not for messages of QoS 0.
   */
  reject(code?: number): void;
}

export interface WorkerOptions {
  /** Share name. */
  group: string;
  /** Topic Filter. */
  filter: string;
  /** Processes a message. When the promise is fulfilled, the message is acknowledged; an error ends the worker. */
  process(message: WorkerMessage): unknown;
  /** Address of the broker, such as `mqtt://localhost`. */
  url: string;
  /** Further options of `mqtt.connect()`. */
  options?: IClientOptions;
  /** Milliseconds between reports; default 1000. */
  interval?: number;
  /** Whether reports are also sent early after a large change; default true. */
  eager?: boolean;
}

export interface Worker {
  readonly client: MqttClient;
  readonly reporter: LoadReporter;
  /** Fulfilled when the worker has subscribed for the first time. */
  readonly ready: Promise<void>;
  /** Fulfilled when the worker has stopped; rejected by the error that ended it. */
  readonly ended: Promise<void>;
  /** Drains, processes the messages that the worker has, and disconnects. SIGTERM and SIGINT do it too. */
  stop(): Promise<void>;
}

/** Starts a worker of `$share/GROUP/FILTER`: it processes one message after the other, at QoS 1 and MQTT 5.0. */
export function worker(options: WorkerOptions): Worker;
