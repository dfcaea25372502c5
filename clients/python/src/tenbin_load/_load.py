"""Counters of a worker's messages, and the times of its reports. Without input and output."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass

TOPIC = "$load"
"""Topic of published reports."""
INTERVAL_MIN = 0.001
"""Shortest interval in seconds; shorter ones count as this one."""
EAGER_GAP = 0.1
"""Shortest time from a report to an early one, in seconds."""
PROCESSING_TIME_MAX_NS = 3600 * 10**9
QUEUE_MAX = 1 << 31


@dataclass(frozen=True)
class Report:
    """A load report."""

    queue: int
    """Messages that wait in the worker."""
    processing_time: float
    """Mean time of a message in seconds since the last report; 0 if none was processed."""
    draining: bool = False

    def to_json(self) -> str:
        fields = {"msgsInQueue": self.queue, "processingTimePerMsg": self.processing_time * 1e3}
        if self.draining:
            fields["draining"] = True
        return json.dumps(fields, separators=(",", ":"))


class Processing:
    """Measurement of one message. `finish()`, or the end of a `with` block, ends it."""

    def __init__(self, load: Load) -> None:
        self._load: Load | None = load
        load._started()
        self._since = time.perf_counter_ns()

    def finish(self) -> None:
        """Adds the time to the mean. Later calls do nothing."""
        load, self._load = self._load, None
        if load is not None:
            load._finished_after(time.perf_counter_ns() - self._since)

    def __enter__(self) -> Processing:
        return self

    def __exit__(self, *exception: object) -> None:
        self.finish()


class Load:
    """Counts messages and processing times. Any thread may use it.

    A report is due once an interval, and early, after `EAGER_GAP`, when the load has changed much: the first message of
    a connection is done, the mean is at least 1.5 times the last reported one or at most two thirds of it, or the queue's
    length is at least four more than twice the reported one. The begin and the end of draining are reported at once.
    """

    def __init__(self, interval: float, eager: bool) -> None:
        if not interval > 0:
            raise ValueError(f"interval {interval!r} is no positive number of seconds")
        self._interval = max(float(interval), INTERVAL_MIN)
        self._eager = eager
        self._lock = threading.Lock()
        self._queue = 0
        self._messages = 0
        self._total_ns = 0
        self._reported_queue = 0
        self._reported_mean_ns: int | None = None
        self._draining = False
        self._has_news = False
        self._next = self._last = 0.0

    def arrived(self) -> None:
        """Adds a message to the queue. Call it before another thread can take the message."""
        with self._lock:
            self._queue = min(self._queue + 1, QUEUE_MAX)
        self._look_for_news()

    def queue(self, messages: int) -> None:
        """Sets the queue's length, where the application has a queue: call it after adding messages.

        `processing()` takes a message out.
        """
        if messages < 0:
            raise ValueError(f"a queue of {messages!r} messages")
        with self._lock:
            self._queue = min(int(messages), QUEUE_MAX)
        self._look_for_news()

    def processing(self) -> Processing:
        """Takes a message out of the queue, and measures until `finish()` or the end of the `with` block."""
        return Processing(self)

    def drain(self) -> None:
        """Asks for no further messages until `resume()`. Signal handlers may call it, so it takes no lock."""
        self._set_draining(True)

    def resume(self) -> None:
        """Asks for messages again."""
        self._set_draining(False)

    def snapshot(self) -> Report:
        """Returns the present values."""
        with self._lock:
            return self._report()

    def _wake(self) -> None:
        """Tells the subclass that an early report becomes due."""

    def _waiting(self) -> int:
        """Returns the number of waiting messages; the lock is held."""
        return self._queue

    def _started(self) -> None:
        with self._lock:
            self._queue = max(self._queue - 1, 0)
        self._look_for_news()  # A subclass may have messages that no arrived() has told.

    def _finished_after(self, nanoseconds: int) -> None:
        with self._lock:
            self._messages += 1
            self._total_ns += min(max(nanoseconds, 0), PROCESSING_TIME_MAX_NS)
        self._look_for_news()

    def _set_draining(self, draining: bool) -> None:
        if self._draining != draining:
            self._draining = draining
            self._tell_news()

    def _look_for_news(self) -> None:
        if self._eager and not self._has_news and self._has_moved():
            self._tell_news()

    def _tell_news(self) -> None:
        if not self._has_news:
            self._has_news = True
            self._wake()

    def _has_moved(self) -> bool:
        with self._lock:
            if self._messages:
                mean, reported = self._total_ns // self._messages, self._reported_mean_ns
                if reported is None or mean != reported and (2 * mean >= 3 * reported or 3 * mean <= 2 * reported):
                    return True
            return self._waiting() >= 2 * self._reported_queue + 4

    def _report(self) -> Report:
        mean_ns = self._total_ns // self._messages if self._messages else 0
        return Report(min(self._waiting(), QUEUE_MAX), mean_ns / 1e9, self._draining)

    def _take(self) -> Report:
        """Returns a report and resets the mean."""
        self._has_news = False  # First, so that any later change counts for the next report.
        with self._lock:
            report = self._report()
            self._reported_queue = report.queue
            if self._messages:
                self._reported_mean_ns = self._total_ns // self._messages
            self._messages = self._total_ns = 0
            return report

    def _connected(self, now: float) -> None:
        """Begins a connection, whose broker knows nothing yet. The first report is due an interval later."""
        with self._lock:
            self._reported_queue, self._reported_mean_ns = 0, None
        self._has_news = self._draining
        self._next, self._last = now + self._interval, now

    def _due(self) -> float:
        return min(self._next, self._last + EAGER_GAP) if self._has_news else self._next

    def _seconds_left(self, now: float) -> float:
        return min(max(self._due() - now, 0.0), 3600.0)

    def _turn(self, now: float) -> bool:
        """Whether a report is due; if so, schedules the next one."""
        if self._due() > now:
            return False
        # Keeps the rhythm of the interval, unless this report was early or late. Late reports cause no burst.
        in_step = self._next + self._interval
        self._next = in_step if self._next <= now < in_step else now + self._interval
        self._last = now
        return True
