package tenbin.load;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Test;

final class WorkerLoopTest {
    /** A worker that notes its actions. */
    private static final class Worker extends WorkerLoop<String> {
        final List<String> actions = Collections.synchronizedList(new ArrayList<>());
        final CountDownLatch begun = new CountDownLatch(1);
        final CountDownLatch goOn = new CountDownLatch(1);

        Worker() {
            super(new LoadReporterTest.Reporter(Duration.ofHours(1), true, false), "g", "jobs/#");
        }

        @Override
        void serve() {
            received("first");
            stopping().handle((nothing, error) -> nothing).join();
        }

        @Override
        void unsubscribe() {
            received("before UNSUBACK");
            goOn.countDown();
        }

        @Override
        void process(String message) throws Exception {
            begun.countDown();
            goOn.await();
            if (message.equals("bad")) {
                throw new IllegalArgumentException(message);
            }
            actions.add(message);
        }

        @Override
        void leave(String message) {
            actions.add("left " + message);
        }

        @Override
        void disconnect() {
            actions.add("DISCONNECT");
            received("too late");
        }
    }

    private final Worker worker = new Worker();

    @Test
    void messagesBeforeUnsubackAreFinished() throws Exception {
        worker.stop();
        worker.runLoop();
        assertEquals(List.of("first", "before UNSUBACK", "DISCONNECT"), worker.actions);
        assertTrue(worker.reporter().take().contains("draining"));
    }

    @Test
    void messagesOfALostConnectionAreLeft() throws Exception {
        var stopper = new Thread(() -> {
            try {
                worker.begun.await();
            } catch (InterruptedException error) {
                return;
            }
            worker.received("not begun");
            worker.lost();
            worker.stop();
        });
        stopper.start();
        worker.runLoop();
        assertEquals(List.of("first", "left not begun", "before UNSUBACK", "DISCONNECT"), worker.actions);
    }

    @Test
    void errorsEndTheWorker() {
        worker.goOn.countDown();
        worker.received("bad");
        var error = assertThrows(IllegalArgumentException.class, worker::runLoop);
        assertEquals("bad", error.getMessage());
        assertEquals(List.of("DISCONNECT"), worker.actions);

        var refused = new Worker();
        refused.refused(135);
        var refusal = assertThrows(IllegalStateException.class, refused::runLoop);
        assertEquals("the broker refused $share/g/jobs/#: 135", refusal.getMessage());
    }

    @Test
    void wrongNamesAreErrors() {
        for (String[] names : new String[][] {{"", "a"}, {"a/b", "a"}, {"a#", "a"}, {"a", ""}}) {
            assertThrows(IllegalArgumentException.class, () -> new WorkerLoop<Void>(null, names[0], names[1]) {
                @Override
                void serve() {}

                @Override
                void unsubscribe() {}

                @Override
                void process(Void message) {}

                @Override
                void leave(Void message) {}

                @Override
                void disconnect() {}
            });
        }
    }
}
