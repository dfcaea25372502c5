package tenbin.load;

import static java.nio.charset.StandardCharsets.US_ASCII;
import static java.util.concurrent.TimeUnit.MICROSECONDS;
import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.junit.jupiter.api.Test;

final class LoadReporterTest {
    private static final Duration LONG = Duration.ofHours(1);

    /** A reporter whose published reports can be waited for. */
    static final class Reporter extends LoadReporter {
        final BlockingQueue<String> published = new LinkedBlockingQueue<>();

        Reporter(Duration interval, boolean eager, boolean force) {
            super(interval, eager, force);
        }

        @Override
        boolean canPublish() {
            return true;
        }

        @Override
        void publish(byte[] report) {
            published.add(new String(report, US_ASCII));
        }
    }

    private final Reporter reporter = new Reporter(LONG, true, false);

    private void finish(long... microseconds) {
        for (long each : microseconds) {
            reporter.finish(MICROSECONDS.toNanos(each));
        }
    }

    @Test
    void takeResetsTheMeanAndNotTheQueue() {
        for (int message = 0; message < 3; message++) {
            reporter.arrived();
        }
        reporter.processing();
        finish(10_000, 15_000);
        assertEquals("{\"msgsInQueue\":2,\"processingTimePerMsg\":12.5}", reporter.take());
        assertEquals("{\"msgsInQueue\":2,\"processingTimePerMsg\":0.0}", reporter.take());
        reporter.drain();
        reporter.queue(-1);
        finish(SECONDS.toMicros(7200));
        assertEquals("{\"msgsInQueue\":0,\"processingTimePerMsg\":3600000.0,\"draining\":true}", reporter.take());
    }

    @Test
    void processingCountsOnceAndTheQueueIsNeverBelowZero() throws InterruptedException {
        var processing = reporter.processing();
        reporter.arrived();
        Thread.sleep(2);
        assertEquals("{\"msgsInQueue\":1,\"processingTimePerMsg\":0.0}", reporter.take());
        processing.close();
        assertFalse(reporter.take().contains(":0.0"));
        processing.close();
        assertTrue(reporter.take().contains(":0.0"));
    }

    @Test
    void firstMeanAndChangesByHalfAreReportedEarly() {
        assertFalse(isEarlyAfter());
        assertTrue(isEarlyAfter(1000));
        assertFalse(isEarlyAfter(1499, 1000, 700));
        assertTrue(isEarlyAfter(1600));
        assertFalse(isEarlyAfter(1100, 1500));
        assertTrue(isEarlyAfter(866));
        assertFalse(isEarlyAfter());
        assertFalse(isEarlyAfter(866, 900));
        reporter.connected(null, true);
        assertTrue(isEarlyAfter(883));
    }

    private boolean isEarlyAfter(long... microseconds) {
        finish(microseconds);
        boolean isEarly = reporter.hasNews();
        reporter.take();
        return isEarly;
    }

    @Test
    void queueAboveTwiceTheReportedOneIsReportedEarly() {
        for (int length : new int[] {4, 12, 28}) {
            reporter.queue(length - 1);
            assertFalse(reporter.hasNews());
            reporter.arrived();
            assertTrue(reporter.hasNews());
            reporter.take();
        }
    }

    @Test
    void withoutEagerOnlyDrainingIsReportedEarly() {
        var reporter = new Reporter(LONG, false, false);
        reporter.queue(100);
        reporter.finish(SECONDS.toNanos(1));
        assertFalse(reporter.hasNews());
        reporter.drain();
        assertTrue(reporter.hasNews());
        reporter.take();
        reporter.drain();
        assertFalse(reporter.hasNews());
        reporter.connected(null, true);
        assertTrue(reporter.hasNews());
        reporter.take();
        reporter.resume();
        assertTrue(reporter.hasNews());
    }

    @Test
    void reportsKeepGapAndRhythm() {
        var reporter = new Reporter(Duration.ofSeconds(1), true, false);
        long before = System.nanoTime();
        reporter.connected(null, true);
        long after = System.nanoTime();
        assertFalse(reporter.turn(before + MILLISECONDS.toNanos(999)));
        assertTrue(reporter.turn(after + MILLISECONDS.toNanos(1010)));
        assertFalse(reporter.turn(before + MILLISECONDS.toNanos(1999)), "in step");
        long begun = after + MILLISECONDS.toNanos(1010);
        reporter.drain();
        assertFalse(reporter.turn(begun + MILLISECONDS.toNanos(99)));
        assertTrue(reporter.turn(begun + MILLISECONDS.toNanos(100)));
        reporter.take();
        assertFalse(reporter.turn(begun + MILLISECONDS.toNanos(1099)), "an interval after the early one");
        assertTrue(reporter.turn(begun + SECONDS.toNanos(30)));
        assertFalse(reporter.turn(begun + SECONDS.toNanos(30) + MILLISECONDS.toNanos(999)), "no burst");
    }

    @Test
    void acknowledgementsCarryDueReportsIfOffered() throws InterruptedException {
        var reporter = new Reporter(Duration.ofMillis(1), true, false);
        for (String offered : new String[] {null, "pingreq", ""}) {
            reporter.connected(offered, true);
            Thread.sleep(2);
            assertEquals(Optional.empty(), reporter.reportForAcknowledgement());
        }
        reporter.connected("pingreq, ack", true);
        Thread.sleep(2);
        assertTrue(reporter.reportForAcknowledgement().isPresent());
        reporter.connected("ack", false);
        Thread.sleep(2);
        assertFalse(reporter.reportForAcknowledgement().isPresent());
        assertTrue(reporter.published.isEmpty());
    }

    @Test
    void reportsWithoutAcknowledgementArePublished() throws InterruptedException {
        for (String offered : new String[] {"pingreq,ack,publish", "publish"}) {
            try (var reporter = new Reporter(LONG, true, false)) {
                reporter.connected(offered, true);
                reporter.drain();
                assertTrue(reporter.published.poll(20, SECONDS).contains("draining"));
            }
        }
        try (var forced = new Reporter(Duration.ofMillis(1), true, true)) {
            forced.connected(null, false);
            assertTrue(forced.published.poll(20, SECONDS) != null);
        }
    }

    @Test
    void intervalWithoutLengthIsAnError() {
        assertThrows(IllegalArgumentException.class, () -> new Reporter(Duration.ZERO, true, false));
    }
}
