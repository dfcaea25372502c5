/** Shortest interval in ms; shorter ones count as this one. */
const INTERVAL_MIN = 1;
/** Shortest time from a report to an early one, in ms. */
export const EAGER_GAP = 100;
const PROCESSING_TIME_MAX = 3_600_000;
export const QUEUE_MAX = 2 ** 31;

/**
 * Counts a worker's messages and processing times, and knows when a report is due. Times are in ms, from any start.
 *
 * A report is due once an interval, and early, after EAGER_GAP, when the load has changed much: the first message of a
 * connection is done, the mean is at least 1.5 times the last reported one or at most two thirds of it, or the queue's
 * length is at least four more than twice the reported one. The begin and the end of draining are reported at once.
 */
export class Load {
  hasNews = false;
  #interval;
  #eager;
  #tellNews;
  #queue = 0;
  #messages = 0;
  #total = 0;
  #draining = false;
  #reportedQueue = 0;
  #reportedMean = null;
  #next = 0;
  #last = 0;

  /** `tellNews` is called when an early report becomes due. */
  constructor(interval, eager, tellNews) {
    if (!(interval > 0)) throw new RangeError(`interval ${interval} is no positive number of milliseconds`);
    this.#interval = Math.max(interval, INTERVAL_MIN);
    this.#eager = eager;
    this.#tellNews = tellNews;
  }

  arrived() {
    this.queue(this.#queue + 1);
  }

  queue(messages) {
    if (!(messages >= 0)) throw new RangeError(`a queue of ${messages} messages`);
    this.#queue = Math.min(Math.trunc(messages), QUEUE_MAX);
    this.#lookForNews();
  }

  started() {
    this.#queue = Math.max(this.#queue - 1, 0);
  }

  finishedAfter(milliseconds) {
    this.#messages++;
    this.#total += Math.min(Math.max(milliseconds, 0), PROCESSING_TIME_MAX);
    this.#lookForNews();
  }

  setDraining(draining) {
    if (this.#draining === draining) return;
    this.#draining = draining;
    this.#setNews();
  }

  snapshot() {
    return { queue: this.#queue, processingTime: this.#mean(), draining: this.#draining };
  }

  /** Returns a report and resets the mean. */
  take() {
    const report = this.snapshot();
    this.hasNews = false;
    this.#reportedQueue = report.queue;
    if (this.#messages > 0) this.#reportedMean = report.processingTime;
    this.#messages = this.#total = 0;
    return report;
  }

  /** Begins a connection, whose broker knows nothing yet. The first report is due an interval later. */
  connected(now) {
    this.#reportedQueue = 0;
    this.#reportedMean = null;
    this.hasNews = this.#draining;
    this.#next = now + this.#interval;
    this.#last = now;
  }

  /** Milliseconds until a report is due. */
  left(now) {
    return Math.max(this.#due() - now, 0);
  }

  /** Whether a report is due; if so, schedules the next one. */
  turn(now) {
    if (this.#due() > now) return false;
    // Keeps the rhythm of the interval, unless this report was early or late. Late reports cause no burst.
    const inStep = this.#next + this.#interval;
    this.#next = this.#next <= now && now < inStep ? inStep : now + this.#interval;
    this.#last = now;
    return true;
  }

  #due() {
    return this.hasNews ? Math.min(this.#next, this.#last + EAGER_GAP) : this.#next;
  }

  #mean() {
    return this.#messages > 0 ? this.#total / this.#messages : 0;
  }

  #lookForNews() {
    if (this.#eager && !this.hasNews && this.#hasMoved()) this.#setNews();
  }

  #setNews() {
    if (this.hasNews) return;
    this.hasNews = true;
    this.#tellNews();
  }

  #hasMoved() {
    const [mean, reported] = [this.#mean(), this.#reportedMean];
    const isFar = () => mean !== reported && (2 * mean >= 3 * reported || 3 * mean <= 2 * reported);
    const meanHasMoved = this.#messages > 0 && (reported === null || isFar());
    return meanHasMoved || this.#queue >= 2 * this.#reportedQueue + 4;
  }
}
