import assert from "node:assert/strict";
import { test } from "node:test";

import { EAGER_GAP, Load, QUEUE_MAX } from "../lib/load.js";

function load({ interval = 1000, eager = true } = {}) {
  const it = new Load(interval, eager, () => {});
  it.connected(0);
  return it;
}

test("a report resets the mean and not the queue", () => {
  const it = load();
  it.queue(3);
  it.started();
  it.finishedAfter(10);
  it.finishedAfter(20);
  assert.deepEqual(it.snapshot(), { queue: 2, processingTime: 15, draining: false });
  assert.deepEqual(it.take(), { queue: 2, processingTime: 15, draining: false });
  assert.deepEqual(it.take(), { queue: 2, processingTime: 0, draining: false });
});

test("values stay within their bounds", () => {
  const it = load();
  it.started();
  it.arrived();
  assert.equal(it.snapshot().queue, 1);
  it.queue(QUEUE_MAX + 1);
  assert.equal(it.snapshot().queue, QUEUE_MAX);
  it.finishedAfter(2 * 3_600_000);
  assert.equal(it.snapshot().processingTime, 3_600_000);
});

test("bad values are named", () => {
  for (const interval of [0, -1, NaN, "soon"]) assert.throws(() => load({ interval }), new RegExp(`interval ${interval}`));
  for (const length of [-1, undefined]) assert.throws(() => load().queue(length), new RegExp(`a queue of ${length}`));
});

test("the first mean and changes by half are news", () => {
  const it = load();
  const cases = [
    [[], false],
    [[1000], true],
    [[1499, 1000, 700], false],
    [[1600], true],
    [[1100, 1500], false],
    [[866], true],
    [[], false],
    [[866, 900], false],
  ];
  for (const [times, isNews] of cases) {
    for (const time of times) it.finishedAfter(time);
    assert.equal(it.hasNews, isNews, `${times}`);
    it.take();
    assert.equal(it.hasNews, false);
  }
  it.connected(1);
  it.finishedAfter(883);
  assert.equal(it.hasNews, true, "the first of this connection");
});

test("a queue above twice the reported one is news", () => {
  const it = load();
  for (const [reported, newsAt] of [[0, 4], [4, 12], [12, 28]]) {
    for (let length = reported + 1; length <= newsAt; length++) {
      assert.equal(it.hasNews, false);
      it.arrived();
      assert.equal(it.hasNews, length === newsAt);
    }
    assert.equal(it.take().queue, newsAt);
  }
});

test("without eager only draining is news", () => {
  const it = load({ eager: false });
  it.queue(100);
  it.finishedAfter(1000);
  assert.equal(it.hasNews, false);
  it.setDraining(true);
  assert.equal(it.hasNews, true);
  assert.equal(it.take().draining, true);
  it.setDraining(true);
  assert.equal(it.hasNews, false, "it was told");
  it.connected(1);
  assert.equal(it.hasNews, true, "the next connection is told too");
  it.take();
  it.setDraining(false);
  assert.equal(it.hasNews, true);
});

test("reports keep the rhythm of the interval", () => {
  const it = load();
  assert.equal(it.left(250), 750);
  assert.equal(it.turn(990), false);
  assert.equal(it.turn(1250), true);
  assert.equal(it.left(1250), 750, "a report that is late delays no other");
  assert.equal(it.turn(7000), true);
  assert.equal(it.left(7000), 1000, "and causes no burst");
});

test("early reports keep a distance", () => {
  const it = load();
  assert.equal(it.turn(1000), true);
  it.setDraining(true);
  assert.equal(it.left(1000), EAGER_GAP);
  assert.equal(it.turn(1050), false);
  assert.equal(it.turn(1500), true);
  it.take();
  assert.equal(it.left(1500), 1000, "an interval after the early one");
});
