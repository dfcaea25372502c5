package tenbin.load;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;

/** Worker of a share group that processes one message at a time, in order, and ends without loss. */
abstract class WorkerLoop<M> {
    private final LoadReporter reporter;
    private final String subscription;
    private final ExecutorService processing = Executors.newSingleThreadExecutor();
    private final CompletableFuture<Void> stopping = new CompletableFuture<>();
    private final CountDownLatch ended = new CountDownLatch(1);
    private volatile Runnable subscribed = () -> {};
    /** Number of lost connections. */
    private final AtomicInteger losses = new AtomicInteger();
    /** Further messages are not begun. */
    private volatile boolean isFinished;

    WorkerLoop(LoadReporter reporter, String group, String filter) {
        if (group.isEmpty() || group.chars().anyMatch(c -> "/+#".indexOf(c) >= 0)) {
            throw new IllegalArgumentException("\"" + group + "\" is no ShareName: it is empty or has one of / + #");
        }
        if (filter.isEmpty()) {
            throw new IllegalArgumentException("the Topic Filter of the worker is empty");
        }
        this.reporter = reporter;
        subscription = "$share/" + group + "/" + filter;
    }

    /** Sets an action that is called after each subscription. */
    public final void onSubscribed(Runnable action) {
        subscribed = action;
    }

    /** Stops the worker as SIGTERM does, and returns at once. */
    public final void stop() {
        stopping.complete(null);
    }

    /** Connects and subscribes, each time that a connection is lost, until {@link #stopping} is done. */
    abstract void serve() throws Exception;

    /** Sends UNSUBSCRIBE and awaits its answer, if the session ends with its connection. */
    abstract void unsubscribe() throws Exception;

    /** Processes and acknowledges a message. */
    abstract void process(M message) throws Exception;

    /** Leaves a message that came over a lost connection to the broker. */
    abstract void leave(M message);

    abstract void disconnect() throws Exception;

    final String subscription() {
        return subscription;
    }

    final LoadReporter reporter() {
        return reporter;
    }

    final CompletableFuture<Void> stopping() {
        return stopping;
    }

    final void subscribed() {
        subscribed.run();
    }

    /** Ends the worker with an error. */
    final void fail(Throwable error) {
        stopping.completeExceptionally(error);
    }

    final void refused(Object reason) {
        fail(new IllegalStateException("the broker refused " + subscription + ": " + reason));
    }

    final void lost() {
        losses.incrementAndGet();
    }

    /** Queues a message. The client calls it in the order of the messages. */
    final void received(M message) {
        int lossesBefore = losses.get();
        reporter.arrived();
        processing.execute(() -> {
            if (isFinished) {
                return;
            }
            if (losses.get() != lossesBefore) {
                reporter.taken();
                leave(message);
                return;
            }
            try {
                process(message);
            } catch (Throwable error) {
                isFinished = true;
                fail(error);
            }
        });
    }

    /** Runs until {@link #stop}, SIGTERM, SIGINT or an error. */
    final void runLoop() throws Exception {
        Thread hook = new Thread(() -> {
            stop();
            try {
                ended.await();
            } catch (InterruptedException error) {
                // The process ends.
            }
        });
        Runtime.getRuntime().addShutdownHook(hook);
        try {
            serve();
            reporter.drain();
            unsubscribe();
            // Behind all messages that have come.
            processing.submit(() -> isFinished = true).get();
            disconnect();
            stopping.get();
        } catch (ExecutionException error) {
            throw error.getCause() instanceof Exception ? (Exception) error.getCause() : error;
        } finally {
            reporter.close();
            processing.shutdown();
            ended.countDown();
            try {
                Runtime.getRuntime().removeShutdownHook(hook);
            } catch (IllegalStateException shutdown) {
                // The hook runs.
            }
        }
    }
}
