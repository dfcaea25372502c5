package tenbin.load;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.lifecycle.MqttClientDisconnectedContext;
import com.hivemq.client.mqtt.mqtt5.Mqtt5AsyncClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5ClientBuilder;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5SubAckException;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5Connect;
import com.hivemq.client.mqtt.mqtt5.message.connect.connack.Mqtt5ConnAck;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import java.util.concurrent.ExecutionException;

/**
 * Worker of a share group with the HiveMQ MQTT Client, at QoS 1.
 *
 * <p>It processes one message at a time, and acknowledges it after its processing. It subscribes again after each
 * reconnection, and reports its load. Messages of a lost connection that were not begun are left to the broker, which
 * delivers them again.
 */
public final class HiveMqWorker extends WorkerLoop<Mqtt5Publish> {
    private final Mqtt5Connect connect;
    private final Mqtt5AsyncClient client;
    private Work work;
    /** Only the client's thread uses it. */
    private boolean hadSession;

    /** Processing of a message. An exception rejects the message; a {@link Rejection} says more. */
    public interface Work {
        void process(Mqtt5Publish message) throws Exception;
    }

    /**
     * Makes a worker with the default packet and reports.
     *
     * @param builder of the client. Without automatic reconnection it gets one, with pauses of 0.1 to 10 s
     * @param group the ShareName
     * @param filter the Topic Filter without {@code $share}
     */
    public HiveMqWorker(Mqtt5ClientBuilder builder, String group, String filter) {
        this(new HiveMqLoadReporter(reconnecting(builder)), Mqtt5Connect.builder().build(), group, filter);
    }

    /**
     * Makes a worker for a reporter's client, which has automatic reconnection.
     *
     * @param connect for a session that lasts, without Clean Start
     */
    public HiveMqWorker(HiveMqLoadReporter reporter, Mqtt5Connect connect, String group, String filter) {
        super(reporter, group, filter);
        this.connect = reporter.ask(connect);
        client = reporter.client();
        reporter.listen(this::connected, this::disconnected);
    }

    /**
     * Processes messages until {@link #stop}, SIGTERM or SIGINT. Then it drains: it takes no further messages, finishes
     * and acknowledges the present ones, and disconnects.
     *
     * @throws IllegalStateException if the broker refuses the subscription
     */
    public void run(Work work) throws Exception {
        this.work = work;
        runLoop();
    }

    @Override
    void serve() {
        // Before CONNECT, so that no message of a session is missed.
        receive();
        client.connect(connect).whenComplete((connack, error) -> {
            if (error != null) {
                fail(error);
            }
        });
        stopping().handle((nothing, error) -> nothing).join();
    }

    @Override
    void unsubscribe() throws InterruptedException {
        if (connect.getSessionExpiryInterval() > 0 || !client.getState().isConnected()) {
            return;
        }
        try {
            client.unsubscribeWith().topicFilter(subscription()).send().get();
        } catch (ExecutionException lost) {
            // The broker takes the messages back.
        }
    }

    @Override
    void process(Mqtt5Publish message) {
        try (var measured = reporter().processing()) {
            work.process(message);
        } catch (Exception error) {
            Rejection rejection = error instanceof Rejection ? (Rejection) error : Rejection.retry();
            ((HiveMqLoadReporter) reporter()).reject(message, rejection);
            return;
        }
        message.acknowledge();
    }

    @Override
    void leave(Mqtt5Publish message) {
        // The client sends no PUBACK over another connection, but its queue needs the end of this message.
        message.acknowledge();
    }

    @Override
    void disconnect() throws InterruptedException {
        try {
            client.disconnect().get();
        } catch (ExecutionException error) {
            // Without a connection, the listener stops the attempts.
        }
    }

    private void receive() {
        // In the client's thread, so that no message comes after the UNSUBACK.
        client.publishes(MqttGlobalPublishFilter.ALL, this::received, Runnable::run, true);
    }

    private void connected(Mqtt5ConnAck connack) {
        if (stopping().isDone()) {
            client.disconnect();
            return;
        }
        // The client forgets its receivers with its session, and acknowledges messages without receivers.
        if (hadSession && !connack.isSessionPresent()) {
            receive();
        }
        hadSession = true;
        var suback = client.subscribeWith().topicFilter(subscription()).qos(MqttQos.AT_LEAST_ONCE).send();
        suback.whenComplete((granted, error) -> {
            if (error == null) {
                subscribed();
            } else if (error instanceof Mqtt5SubAckException) {
                refused(((Mqtt5SubAckException) error).getMqttMessage().getReasonCodes().get(0));
            }
        });
    }

    private void disconnected(MqttClientDisconnectedContext context) {
        lost();
        // This worker subscribes by itself, to see the answer.
        context.getReconnector().resubscribeIfSessionExpired(false);
        if (stopping().isDone()) {
            context.getReconnector().reconnect(false);
        }
    }

    private static Mqtt5ClientBuilder reconnecting(Mqtt5ClientBuilder builder) {
        if (builder.build().getConfig().getAutomaticReconnect().isEmpty()) {
            var pauses = builder.automaticReconnect().initialDelay(100, MILLISECONDS).maxDelay(10, SECONDS);
            pauses.applyAutomaticReconnect();
        }
        return builder;
    }
}
