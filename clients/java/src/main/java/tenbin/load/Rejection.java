package tenbin.load;

import java.time.Duration;
import java.util.Map;

/** How a message is rejected. It is an exception, so the work of a {@link HiveMqWorker} can throw it. */
public final class Rejection extends Exception {
    private static final long serialVersionUID = 1;

    private final String name;
    private final String value;

    private Rejection(String message, String name, String value) {
        super(message, null, false, false);
        this.name = name;
        this.value = value;
    }

    /** Leaves the pause until the next delivery to the broker. */
    public static Rejection retry() {
        return new Rejection("message rejected", null, null);
    }

    /**
     * Asks for a pause until the next delivery.
     *
     * @param pause in whole milliseconds, a day at most
     */
    public static Rejection retryAfter(Duration pause) {
        if (pause.isNegative()) {
            throw new IllegalArgumentException("the pause until the next delivery is " + pause);
        }
        return new Rejection("message rejected, next try after " + pause, "retry-after-ms", "" + pause.toMillis());
    }

    /**
     * Asks the broker to make the message a dead letter at once.
     *
     * @param reason why no worker can process the message, 256 bytes at most
     */
    public static Rejection deadLetter(String reason) {
        return new Rejection("message rejected as a dead letter: " + reason, "dead-letter", reason);
    }

    /** User Properties of the acknowledgement. */
    Map<String, String> properties() {
        return name == null ? Map.of() : Map.of(name, value);
    }
}
