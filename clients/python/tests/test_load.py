import json
import threading
import unittest

from tenbin_load._load import EAGER_GAP, QUEUE_MAX, Load, Report


def load(interval=1.0, eager=True):
    load = Load(interval, eager)
    load._connected(0.0)
    return load


class Counting(unittest.TestCase):
    def test_report_resets_the_mean_and_not_the_queue(self):
        it = load()
        it.queue(3)
        it.processing()
        it._finished_after(10_000_000)
        it._finished_after(20_000_000)
        self.assertEqual(it.snapshot(), Report(2, 0.015))
        self.assertEqual(it._take(), Report(2, 0.015))
        self.assertEqual(it._take(), Report(2, 0.0))

    def test_queue_is_never_below_zero_nor_above_the_maximum(self):
        it = load()
        it.processing()
        it.arrived()
        self.assertEqual(it.snapshot().queue, 1)
        it.queue(QUEUE_MAX + 1)
        it.arrived()
        self.assertEqual(it.snapshot().queue, QUEUE_MAX)

    def test_processing_counts_once_and_also_after_an_exception(self):
        it = load()
        processing = it.processing()
        self.assertEqual(it._messages, 0)
        processing.finish()
        processing.finish()
        self.assertEqual(it._messages, 1)
        with self.assertRaises(KeyError), it.processing():
            raise KeyError
        self.assertEqual(it._messages, 2)
        self.assertGreater(it.snapshot().processing_time, 0)

    def test_time_above_an_hour_counts_as_an_hour(self):
        it = load()
        it._finished_after(2 * 3600 * 10**9)
        self.assertEqual(it.snapshot().processing_time, 3600)

    def test_bad_values_are_named(self):
        for interval in (0, -1, float("nan")):
            with self.assertRaisesRegex(ValueError, repr(interval)):
                Load(interval, True)
        with self.assertRaisesRegex(ValueError, "-1"):
            load().queue(-1)

    def test_json_has_milliseconds(self):
        self.assertEqual(
            json.loads(Report(12, 0.0253, True).to_json()),
            {"msgsInQueue": 12, "processingTimePerMsg": 25.3, "draining": True},
        )
        self.assertNotIn("draining", Report(0, 0.0).to_json())

    def test_threads_lose_nothing(self):
        it = load()

        def work():
            for _ in range(2000):
                it.arrived()
                it.processing()
                it._finished_after(500)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((it._messages, it.snapshot()), (8000, Report(0, 500e-9)))


class EarlyReports(unittest.TestCase):
    def report_after(self, it, *microseconds):
        for time in microseconds:
            it._finished_after(time * 1000)
        had_news = it._has_news
        it._take()
        return had_news, it._has_news

    def test_first_mean_and_changes_by_half(self):
        it = load()
        for times, is_early in (
            ([], False),
            ([1000], True),
            ([1499, 1000, 700], False),
            ([1600], True),
            ([1100, 1500], False),
            ([866], True),
            ([], False),
            ([866, 900], False),
        ):
            self.assertEqual(self.report_after(it, *times), (is_early, False), times)
        it._connected(1.0)
        self.assertEqual(self.report_after(it, 883), (True, False), "the first of this connection")

    def test_queue_above_twice_the_reported_one(self):
        it = load()
        for reported, news_at in ((0, 4), (4, 12), (12, 28)):
            for length in range(reported + 1, news_at + 1):
                self.assertFalse(it._has_news)
                it.arrived()
                self.assertEqual(it._has_news, length == news_at)
            self.assertEqual(it._take().queue, news_at)

    def test_without_eager_only_draining(self):
        it = load(eager=False)
        it.queue(100)
        it._finished_after(10**9)
        self.assertFalse(it._has_news)
        it.drain()
        self.assertTrue(it._has_news and it._take().draining and not it._has_news)
        it.drain()
        self.assertFalse(it._has_news, "it was told")
        it._connected(1.0)
        self.assertTrue(it._has_news, "the next connection is told too")
        it._take()
        it.resume()
        self.assertTrue(it._has_news and not it._take().draining)


class Schedule(unittest.TestCase):
    def test_reports_keep_the_rhythm_of_the_interval(self):
        it = load()
        self.assertEqual(it._seconds_left(0.25), 0.75)
        self.assertFalse(it._turn(0.99))
        self.assertTrue(it._turn(1.25))
        self.assertEqual(it._seconds_left(1.25), 0.75, "a report that is late delays no other")
        self.assertTrue(it._turn(7.0))
        self.assertEqual(it._seconds_left(7.0), 1.0, "and causes no burst")

    def test_early_reports_keep_a_distance(self):
        it = load()
        self.assertTrue(it._turn(1.0))
        it.drain()
        self.assertAlmostEqual(it._seconds_left(1.0), EAGER_GAP)
        self.assertFalse(it._turn(1.05))
        self.assertTrue(it._turn(1.5))
        it._take()
        self.assertEqual(it._seconds_left(1.5), 1.0, "an interval after the early one")


if __name__ == "__main__":
    unittest.main()
