package tenbin.load;

import static java.nio.charset.StandardCharsets.US_ASCII;
import static java.util.concurrent.TimeUnit.HOURS;
import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Counts the messages and processing times of one client, and reports them to the broker.
 *
 * <p>A report has the number of messages that wait and the mean processing time since the last report. Reports are
 * sent once an interval, and early after a large change, at least 100 ms after the last report. A large change is any
 * of these:
 *
 * <ul>
 *   <li>The first message on a connection is done.
 *   <li>The mean is at least 1.5 times the last reported one, or at most two thirds of it.
 *   <li>The queue is at least four longer than twice the reported one.
 * </ul>
 *
 * <p>A broker whose CONNACK does not offer reports gets none. Any thread may use a reporter.
 */
public abstract class LoadReporter implements AutoCloseable {
    /** Default time between regular reports. */
    public static final Duration INTERVAL = Duration.ofSeconds(1);

    /** Topic of published reports. */
    static final String TOPIC = "$load";
    /** User Property of CONNECT and CONNACK that negotiates the carriers of reports. */
    static final String PROPERTY = "load-report";

    private static final long EAGER_GAP_NS = MILLISECONDS.toNanos(100);
    /** Time for which a due report waits for an acknowledgement that can carry it. */
    private static final long ACKNOWLEDGEMENT_NS = MILLISECONDS.toNanos(20);
    private static final long LONGEST_NS = HOURS.toNanos(1);

    private final long intervalNs;
    private final boolean isEager;
    private final boolean isForced;

    private long queue;
    /** Messages and processing times since the last report. */
    private long messages;

    private long totalNs;
    private boolean isDraining;
    /** An early report is due. */
    private boolean hasNews;
    /** Values of this connection's last report; the mean is 0 before the first. */
    private long reportedQueue;

    private long reportedNs;
    /** Carriers of this connection; both are false without a connection. */
    private boolean byAcknowledgement;

    private boolean byPublish;
    /** When the next regular report is due, and when the last report was due, by the clock {@link System#nanoTime}. */
    private long next;

    private long last;
    private Thread publisher;

    LoadReporter(Duration interval, boolean eager, boolean force) {
        if (interval.isZero() || interval.isNegative()) {
            throw new IllegalArgumentException("the interval between reports is " + interval);
        }
        intervalNs = Math.max(interval.toNanos(), MILLISECONDS.toNanos(1));
        isEager = eager;
        isForced = force;
    }

    /** Measurement of the processing time of one message, which {@link #close} ends. */
    public final class Processing implements AutoCloseable {
        private final long begun = System.nanoTime();
        private final AtomicBoolean isDone = new AtomicBoolean();

        private Processing() {}

        @Override
        public void close() {
            if (!isDone.getAndSet(true)) {
                finish(System.nanoTime() - begun);
            }
        }
    }

    /** Adds a message to the queue. */
    public final synchronized void arrived() {
        queue++;
        lookForNews();
    }

    /** Takes a message out of the queue, and measures its processing time until the result is closed. */
    public final Processing processing() {
        taken();
        return new Processing();
    }

    /** Sets the length of the queue, for an application that knows it better. */
    public final synchronized void queue(long length) {
        queue = Math.max(length, 0);
        lookForNews();
    }

    /**
     * Asks the broker for no further messages until {@link #resume}. It is reported at once, and in every report.
     *
     * <p>The broker gives messages to other members of the share group as long as one can take them.
     */
    public final void drain() {
        setDraining(true);
    }

    /** Asks for messages again after {@link #drain}. It is reported at once. */
    public final void resume() {
        setDraining(false);
    }

    /** Ends the reports. It does not close the client. */
    @Override
    public final synchronized void close() {
        disconnected();
        if (publisher != null) {
            publisher.interrupt();
        }
    }

    /** Whether a report can be published now. It is false while an earlier report is not written. */
    abstract boolean canPublish();

    /** Publishes a report to {@link #TOPIC} with QoS 0, without waiting. */
    abstract void publish(byte[] report);

    /** Takes a message out of the queue without measuring. */
    final synchronized void taken() {
        queue = Math.max(queue - 1, 0);
    }

    /**
     * Begins a connection, whose broker knows no reports yet.
     *
     * @param offered the value of {@link #PROPERTY} in CONNACK, or null
     * @param canAcknowledge whether the client can send reports in acknowledgements
     */
    final synchronized void connected(String offered, boolean canAcknowledge) {
        var words = List.of(offered == null ? new String[0] : offered.trim().split("\\s*,\\s*"));
        byAcknowledgement = canAcknowledge && words.contains("ack");
        byPublish = words.contains("publish") || isForced;
        reportedQueue = 0;
        reportedNs = 0;
        hasNews = isDraining;
        last = System.nanoTime();
        next = last + intervalNs;
        if (byPublish && publisher == null) {
            publisher = new Thread(this::publishReports, "tenbin-load");
            publisher.setDaemon(true);
            publisher.start();
        }
        notifyAll();
    }

    final synchronized void disconnected() {
        byAcknowledgement = false;
        byPublish = false;
    }

    /** Returns the report for an acknowledgement to carry, if one is due. */
    final synchronized Optional<String> reportForAcknowledgement() {
        return byAcknowledgement && turn(System.nanoTime()) ? Optional.of(take()) : Optional.empty();
    }

    /** Returns a report as JSON, and resets the mean. */
    final synchronized String take() {
        hasNews = false;
        reportedQueue = queue;
        long meanNs = meanNs();
        if (messages > 0) {
            reportedNs = meanNs;
        }
        messages = 0;
        totalNs = 0;
        String draining = isDraining ? ",\"draining\":true" : "";
        return "{\"msgsInQueue\":" + queue + ",\"processingTimePerMsg\":" + meanNs / 1e6 + draining + "}";
    }

    /** Adds the processing time of a message. */
    final synchronized void finish(long elapsedNs) {
        messages++;
        totalNs += Math.min(elapsedNs, LONGEST_NS);
        lookForNews();
    }

    final synchronized boolean hasNews() {
        return hasNews;
    }

    /** Whether a report is due at a time; if so, it sets the time of the next one. */
    final synchronized boolean turn(long now) {
        if (now - due() < 0) {
            return false;
        }
        // Keeps the rhythm unless this report was early or late. Late reports cause no burst.
        long inStep = next + intervalNs;
        next = now - next >= 0 && inStep - now > 0 ? inStep : now + intervalNs;
        last = now;
        return true;
    }

    private long due() {
        return hasNews && last + EAGER_GAP_NS - next < 0 ? last + EAGER_GAP_NS : next;
    }

    private synchronized void setDraining(boolean draining) {
        if (isDraining != draining) {
            isDraining = draining;
            tellNews();
        }
    }

    private void lookForNews() {
        if (!isEager || hasNews) {
            return;
        }
        long meanNs = meanNs();
        boolean isFar = meanNs != reportedNs && (2 * meanNs >= 3 * reportedNs || 3 * meanNs <= 2 * reportedNs);
        if (messages > 0 && isFar || queue >= 2 * reportedQueue + 4) {
            tellNews();
        }
    }

    private void tellNews() {
        hasNews = true;
        notifyAll();
    }

    private long meanNs() {
        return messages == 0 ? 0 : totalNs / messages;
    }

    private void publishReports() {
        try {
            while (true) {
                awaitTurn();
                // Not while holding the lock, since the client has locks, too. A report that cannot leave would be
                // stale later; its counts go into the next one.
                if (canPublish()) {
                    publish(take().getBytes(US_ASCII));
                }
            }
        } catch (InterruptedException closed) {
            // The end of the reporter.
        }
    }

    private synchronized void awaitTurn() throws InterruptedException {
        while (true) {
            long now = System.nanoTime();
            long left = due() + (byAcknowledgement ? ACKNOWLEDGEMENT_NS : 0) - now;
            if (!byPublish) {
                wait();
            } else if (left > 0) {
                NANOSECONDS.timedWait(this, left);
            } else if (turn(now)) {
                return;
            }
        }
    }
}
