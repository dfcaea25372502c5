package tenbin.load;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.eclipse.paho.mqttv5.client.IMqttToken;
import org.eclipse.paho.mqttv5.client.MqttActionListener;
import org.eclipse.paho.mqttv5.client.MqttAsyncClient;
import org.eclipse.paho.mqttv5.client.MqttClientPersistence;
import org.eclipse.paho.mqttv5.client.MqttConnectionOptions;
import org.eclipse.paho.mqttv5.common.MqttException;
import org.eclipse.paho.mqttv5.common.packet.MqttProperties;
import org.eclipse.paho.mqttv5.common.packet.UserProperty;

/**
 * Reports the load of a worker with Eclipse Paho's client for MQTT 5.0, in messages to {@code $load}.
 *
 * <p>Paho's acknowledgements carry no User Properties.
 */
public final class PahoLoadReporter extends LoadReporter {
    private final MqttAsyncClient client;
    /** Token of the last report of this connection, or null. */
    private volatile IMqttToken published;

    /** Makes a reporter with the defaults: an interval of one second, early reports, silence at other brokers. */
    public PahoLoadReporter(String serverUri, String clientId, MqttClientPersistence persistence)
            throws MqttException {
        this(serverUri, clientId, persistence, INTERVAL, true, false);
    }

    /**
     * Makes a reporter and its client.
     *
     * @param interval time between regular reports, a millisecond at least
     * @param eager whether reports are also sent early after large changes
     * @param force publishes reports even if CONNACK does not offer it
     */
    public PahoLoadReporter(
            String serverUri,
            String clientId,
            MqttClientPersistence persistence,
            Duration interval,
            boolean eager,
            boolean force)
            throws MqttException {
        super(interval, eager, force);
        client = new Client(serverUri, clientId, persistence);
    }

    /** The client, to use as any other. Its reconnections are watched, too. */
    public MqttAsyncClient client() {
        return client;
    }

    @Override
    boolean canPublish() {
        IMqttToken last = published;
        return client.isConnected() && (last == null || last.isComplete());
    }

    @Override
    void publish(byte[] report) {
        try {
            published = client.publish(TOPIC, report, 0, false);
        } catch (MqttException error) {
            // The connection is lost. The next one gets the next report.
        }
    }

    private static void ask(MqttConnectionOptions options) {
        List<UserProperty> properties = new ArrayList<>();
        if (options.getUserProperties() != null) {
            properties.addAll(options.getUserProperties());
        }
        if (properties.stream().noneMatch(property -> property.getKey().equals(PROPERTY))) {
            properties.add(new UserProperty(PROPERTY, "?"));
            options.setUserProperties(properties);
        }
    }

    private static String offer(MqttProperties connack) {
        return connack == null
                ? null
                : connack.getUserProperties().stream()
                        .filter(property -> property.getKey().equals(PROPERTY))
                        .map(UserProperty::getValue)
                        .findFirst()
                        .orElse(null);
    }

    /** Watches each connection. All other ways to connect, and automatic reconnection, end in this method. */
    private final class Client extends MqttAsyncClient {
        Client(String serverUri, String clientId, MqttClientPersistence persistence) throws MqttException {
            super(serverUri, clientId, persistence);
        }

        @Override
        public IMqttToken connect(MqttConnectionOptions options, Object context, MqttActionListener listener)
                throws MqttException {
            ask(options);
            return super.connect(options, context, new MqttActionListener() {
                @Override
                public void onSuccess(IMqttToken token) {
                    published = null;
                    connected(offer(token.getResponseProperties()), false);
                    if (listener != null) {
                        listener.onSuccess(token);
                    }
                }

                @Override
                public void onFailure(IMqttToken token, Throwable error) {
                    if (listener != null) {
                        listener.onFailure(token, error);
                    }
                }
            });
        }
    }
}
