package tenbin.load;

import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.lifecycle.MqttClientDisconnectedContext;
import com.hivemq.client.mqtt.mqtt5.Mqtt5AsyncClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5ClientBuilder;
import com.hivemq.client.mqtt.mqtt5.Mqtt5ClientConfig;
import com.hivemq.client.mqtt.mqtt5.advanced.interceptor.qos1.Mqtt5IncomingQos1Interceptor;
import com.hivemq.client.mqtt.mqtt5.datatypes.Mqtt5UserProperties;
import com.hivemq.client.mqtt.mqtt5.lifecycle.Mqtt5ClientConnectedContext;
import com.hivemq.client.mqtt.mqtt5.lifecycle.Mqtt5ClientDisconnectedContext;
import com.hivemq.client.mqtt.mqtt5.lifecycle.Mqtt5ClientReconnector;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5Connect;
import com.hivemq.client.mqtt.mqtt5.message.connect.connack.Mqtt5ConnAck;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import com.hivemq.client.mqtt.mqtt5.message.publish.puback.Mqtt5PubAckBuilder;
import com.hivemq.client.mqtt.mqtt5.message.publish.puback.Mqtt5PubAckReasonCode;
import java.time.Duration;
import java.util.AbstractMap.SimpleImmutableEntry;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.function.Consumer;

/**
 * Reports the load of a worker with the HiveMQ MQTT Client, MQTT 5.0.
 *
 * <p>Acknowledgements of QoS 1 carry the reports if the broker offers that. Reports that no acknowledgement takes within
 * 20 ms are published to {@code $load}, if the broker offers it.
 */
public final class HiveMqLoadReporter extends LoadReporter {
    private final Mqtt5AsyncClient client;
    /** The application's interceptor, or null. */
    private final Mqtt5IncomingQos1Interceptor inner;
    /** Rejected messages whose PUBACK is not made yet. */
    private final List<SimpleImmutableEntry<Mqtt5Publish, Rejection>> rejected = new ArrayList<>();

    /** User Properties of the last packet that {@link #ask} has returned. */
    private volatile Mqtt5UserProperties asked = Mqtt5UserProperties.of();

    private volatile Future<?> published = CompletableFuture.completedFuture(null);
    private volatile Consumer<Mqtt5ConnAck> onConnected = connack -> {};
    private volatile Consumer<MqttClientDisconnectedContext> onDisconnected = context -> {};

    /** Makes a reporter with the defaults: an interval of one second, early reports, silence at other brokers. */
    public HiveMqLoadReporter(Mqtt5ClientBuilder builder) {
        this(builder, INTERVAL, true, false);
    }

    /**
     * Makes a reporter and its client. Nothing that the builder has is replaced.
     *
     * @param interval time between regular reports, a millisecond at least
     * @param eager whether reports are also sent early after large changes
     * @param force publishes reports even if CONNACK does not offer it
     */
    public HiveMqLoadReporter(Mqtt5ClientBuilder builder, Duration interval, boolean eager, boolean force) {
        super(interval, eager, force);
        // Only a client tells which interceptors its builder has.
        var interceptors = builder.build().getConfig().getAdvancedConfig().getInterceptors();
        inner = interceptors == null ? null : interceptors.getIncomingQos1Interceptor();
        client = builder.advancedConfig()
                .interceptors()
                .incomingQos1Interceptor(this::acknowledge)
                .applyInterceptors()
                .applyAdvancedConfig()
                .addConnectedListener(context -> {
                    Mqtt5ConnAck connack = ((Mqtt5ClientConnectedContext) context).getConnAck();
                    published = CompletableFuture.completedFuture(null);
                    connected(offer(connack), true);
                    onConnected.accept(connack);
                })
                .addDisconnectedListener(context -> {
                    disconnected();
                    askAgain(((Mqtt5ClientDisconnectedContext) context).getReconnector());
                    onDisconnected.accept(context);
                })
                .buildAsync();
    }

    /** The client. Connect it with a packet that {@link #ask} returns. */
    public Mqtt5AsyncClient client() {
        return client;
    }

    /** Returns a CONNECT packet that asks the broker for its carriers of reports. */
    public Mqtt5Connect ask(Mqtt5Connect connect) {
        var asking = connect.extend().userProperties().add(PROPERTY, "?").applyUserProperties().build();
        asked = asking.getUserProperties();
        return asking;
    }

    /**
     * Acknowledges a message with a rejection: Reason Code 0x80, with the pause or the reason.
     *
     * <p>A broker without a work-queue rule ({@code on_reject} of {@code [[share]]}), and any other broker, drops a
     * rejected message.
     *
     * @param message of QoS 1, with manual acknowledgement, and not acknowledged
     */
    public void reject(Mqtt5Publish message, Rejection rejection) {
        if (message.getQos() != MqttQos.AT_LEAST_ONCE) {
            throw new IllegalArgumentException("a message of QoS 1 can be rejected, and none of " + message.getQos());
        }
        var entry = new SimpleImmutableEntry<>(message, rejection);
        synchronized (rejected) {
            rejected.add(entry);
        }
        try {
            message.acknowledge();
        } catch (IllegalStateException | UnsupportedOperationException error) {
            synchronized (rejected) {
                rejected.removeIf(other -> other == entry);
            }
            throw error;
        }
    }

    /** Sets what a worker does when its connection is made or lost, in the client's thread. */
    void listen(Consumer<Mqtt5ConnAck> connected, Consumer<MqttClientDisconnectedContext> disconnected) {
        onConnected = connected;
        onDisconnected = disconnected;
    }

    @Override
    boolean canPublish() {
        return client.getState().isConnected() && published.isDone();
    }

    @Override
    void publish(byte[] report) {
        published = client.publishWith().topic(TOPIC).qos(MqttQos.AT_MOST_ONCE).payload(report).send();
    }

    /** Restores the User Properties of CONNECT, which the client forgets when it connects again by itself. */
    private void askAgain(Mqtt5ClientReconnector reconnector) {
        var connect = reconnector.getConnect();
        if (connect.getUserProperties().asList().isEmpty()) {
            reconnector.connect(connect.extend().userProperties(asked).build());
        }
    }

    private static String offer(Mqtt5ConnAck connack) {
        return connack.getUserProperties().asList().stream()
                .filter(property -> property.getName().toString().equals(PROPERTY))
                .map(property -> property.getValue().toString())
                .findFirst()
                .orElse(null);
    }

    /** Completes a PUBACK. The client calls it when it makes the packet, for manual acknowledgements too. */
    private void acknowledge(Mqtt5ClientConfig config, Mqtt5Publish message, Mqtt5PubAckBuilder puback) {
        if (inner != null) {
            inner.onPublish(config, message, puback);
        }
        var properties = puback.userProperties();
        Rejection rejection = takeRejection(message);
        if (rejection != null) {
            puback.reasonCode(Mqtt5PubAckReasonCode.UNSPECIFIED_ERROR);
            rejection.properties().forEach(properties::add);
        }
        reportForAcknowledgement().ifPresent(report -> properties.add("load", report));
        properties.applyUserProperties();
    }

    /**
     * Returns the rejection of a message, or null.
     *
     * <p>The client shows no Packet Identifier, so messages are compared by content. Of equal messages any one may be
     * rejected.
     */
    private Rejection takeRejection(Mqtt5Publish message) {
        synchronized (rejected) {
            for (var entry : rejected) {
                if (entry.getKey().equals(message)) {
                    rejected.remove(entry);
                    return entry.getValue();
                }
            }
            return null;
        }
    }
}
