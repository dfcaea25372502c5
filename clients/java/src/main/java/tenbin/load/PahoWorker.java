package tenbin.load;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeoutException;
import org.eclipse.paho.mqttv5.client.IMqttToken;
import org.eclipse.paho.mqttv5.client.MqttAsyncClient;
import org.eclipse.paho.mqttv5.client.MqttCallback;
import org.eclipse.paho.mqttv5.client.MqttConnectionOptions;
import org.eclipse.paho.mqttv5.client.MqttDisconnectResponse;
import org.eclipse.paho.mqttv5.common.MqttException;
import org.eclipse.paho.mqttv5.common.MqttMessage;
import org.eclipse.paho.mqttv5.common.packet.MqttProperties;

/**
 * Worker of a share group with Eclipse Paho's client for MQTT 5.0, at QoS 1.
 *
 * <p>It processes one message at a time, and acknowledges it after its processing. It subscribes again after each
 * reconnection, and reports its load. Messages of a lost connection that were not begun are left to the broker, which
 * delivers them again.
 */
public final class PahoWorker extends WorkerLoop<PahoWorker.Arrived> {
    private static final long PATIENCE_MS = 30_000;

    private final MqttConnectionOptions options;
    private final MqttAsyncClient client;
    /** Done when the present connection is lost. */
    private volatile CompletableFuture<Void> lost = new CompletableFuture<>();
    private Work work;

    /** Processing of a message. An exception ends the worker; the message goes to another one. */
    public interface Work {
        void process(String topic, MqttMessage message) throws Exception;
    }

    /** A message, its topic and its connection. */
    static final class Arrived {
        private final String topic;
        private final MqttMessage message;
        private final CompletableFuture<Void> lost;

        private Arrived(String topic, MqttMessage message, CompletableFuture<Void> lost) {
            this.topic = topic;
            this.message = message;
            this.lost = lost;
        }
    }

    /**
     * Makes a worker for a reporter's client, whose callback it sets.
     *
     * @param options without automatic reconnection: the worker reconnects, after pauses of 0.1 to 10 s
     * @param group the ShareName
     * @param filter the Topic Filter without {@code $share}
     */
    public PahoWorker(PahoLoadReporter reporter, MqttConnectionOptions options, String group, String filter) {
        super(reporter, group, filter);
        this.options = options;
        client = reporter.client();
        client.setManualAcks(true);
        client.setCallback(new Callback());
    }

    /**
     * Processes messages until {@link #stop}, SIGTERM or SIGINT. Then it drains: it takes no further messages, finishes
     * and acknowledges the present ones, and disconnects.
     *
     * @throws IllegalStateException if the broker refuses the subscription
     * @throws Exception of the work
     */
    public void run(Work work) throws Exception {
        this.work = work;
        runLoop();
    }

    @Override
    void serve() throws Exception {
        long pause = 100;
        while (!stopping().isDone()) {
            try {
                lost = new CompletableFuture<>();
                client.connect(options).waitForCompletion(PATIENCE_MS);
                IMqttToken suback = client.subscribe(subscription(), 1);
                suback.waitForCompletion(PATIENCE_MS);
                if (suback.getReasonCodes()[0] >= 0x80) {
                    refused(suback.getReasonCodes()[0]);
                    return;
                }
                pause = 100;
                subscribed();
                CompletableFuture.anyOf(lost, stopping()).handle((nothing, error) -> nothing).join();
            } catch (MqttException error) {
                abandon();
            }
            await(pause);
            pause = Math.min(2 * pause, 10_000);
        }
    }

    @Override
    void unsubscribe() {
        Long expiry = options.getSessionExpiryInterval();
        if (expiry != null && expiry > 0) {
            return;
        }
        try {
            client.unsubscribe(subscription()).waitForCompletion(PATIENCE_MS);
        } catch (MqttException lost) {
            // The broker takes the messages back.
        }
    }

    @Override
    void process(Arrived arrived) throws Exception {
        try (var measured = reporter().processing()) {
            work.process(arrived.topic, arrived.message);
        }
        // The next connection may have another message of this Packet Identifier.
        if (arrived.lost.isDone()) {
            return;
        }
        try {
            client.messageArrivedComplete(arrived.message.getId(), arrived.message.getQos());
        } catch (MqttException error) {
            // The connection is lost.
        }
    }

    @Override
    void leave(Arrived message) {}

    @Override
    void disconnect() throws MqttException {
        if (client.isConnected()) {
            client.disconnect().waitForCompletion(PATIENCE_MS);
        }
        client.close(true);
    }

    private void abandon() {
        try {
            client.disconnectForcibly(0, 0, false);
        } catch (MqttException error) {
            // There is no connection.
        }
    }

    private void await(long milliseconds) throws Exception {
        try {
            stopping().handle((nothing, error) -> nothing).get(milliseconds, MILLISECONDS);
        } catch (TimeoutException passed) {
            // It goes on.
        }
    }

    private final class Callback implements MqttCallback {
        @Override
        public void messageArrived(String topic, MqttMessage message) {
            received(new Arrived(topic, message, lost));
        }

        @Override
        public void disconnected(MqttDisconnectResponse response) {
            lost();
            lost.complete(null);
        }

        @Override
        public void mqttErrorOccurred(MqttException error) {}

        @Override
        public void deliveryComplete(IMqttToken token) {}

        @Override
        public void connectComplete(boolean reconnect, String serverUri) {}

        @Override
        public void authPacketArrived(int reasonCode, MqttProperties properties) {}
    }
}
