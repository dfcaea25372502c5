import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.SECONDS;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import javax.net.ssl.SSLContext;
import org.eclipse.paho.mqttv5.client.IMqttToken;
import org.eclipse.paho.mqttv5.client.MqttCallback;
import org.eclipse.paho.mqttv5.client.MqttClient;
import org.eclipse.paho.mqttv5.client.MqttConnectionOptions;
import org.eclipse.paho.mqttv5.client.MqttDisconnectResponse;
import org.eclipse.paho.mqttv5.client.persist.MemoryPersistence;
import org.eclipse.paho.mqttv5.common.MqttException;
import org.eclipse.paho.mqttv5.common.MqttMessage;
import org.eclipse.paho.mqttv5.common.packet.MqttProperties;
import org.eclipse.paho.mqttv5.common.packet.MqttReturnCode;
import org.eclipse.paho.mqttv5.common.packet.UserProperty;

/** Exercises a broker with Eclipse Paho's Java client (MQTT 5.0). */
final class PahoClient {
    private static final class Arrived {
        final String topic;
        final MqttMessage message;

        Arrived(String topic, MqttMessage message) {
            this.topic = topic;
            this.message = message;
        }

        String text() {
            return new String(message.getPayload(), UTF_8);
        }
    }

    /** The blocking client, which itself cannot name a Reason Code at its end. */
    private static final class Blocking extends MqttClient {
        Blocking(String uri, String id) throws MqttException {
            super(uri, id, new MemoryPersistence());
        }

        void disconnectWithWill() throws MqttException {
            int code = MqttReturnCode.RETURN_CODE_DISCONNECT_WITH_WILL_MESSAGE;
            aClient.disconnect(0, null, null, code, new MqttProperties()).waitForCompletion();
        }
    }

    /** A client whose messages can be waited for. */
    private static final class Client implements MqttCallback {
        private final Blocking client;
        private final BlockingQueue<Arrived> messages = new LinkedBlockingQueue<>();
        private boolean sessionPresent;

        private Client(String id, MqttConnectionOptions options) throws Exception {
            String uri = Program.url.toString().replaceFirst("^tls:", "ssl:");
            client = new Blocking(uri, id);
            client.setTimeToWait(SECONDS.toMillis(Program.PATIENCE_SECONDS));
            client.setCallback(this);
            if (Program.isTls()) {
                SSLContext tls = SSLContext.getInstance("TLS");
                tls.init(null, Program.trust().getTrustManagers(), null);
                options.setSocketFactory(tls.getSocketFactory());
            }
            sessionPresent = client.connectWithResult(options).getSessionPresent();
        }

        static Client connect(String id) throws Exception {
            return new Client(id, new MqttConnectionOptions());
        }

        static Client connect(String id, String willTopic, MqttMessage will) throws Exception {
            var options = new MqttConnectionOptions();
            options.setWill(willTopic, will);
            return new Client(id, options);
        }

        static Client resume(String id) throws Exception {
            var options = new MqttConnectionOptions();
            options.setCleanStart(false);
            options.setSessionExpiryInterval(3600L);
            return new Client(id, options);
        }

        void subscribe(String topic, int qos) throws MqttException {
            int[] granted = client.subscribe(topic, qos).getReasonCodes();
            Program.checkEqual(Arrays.toString(granted), Arrays.toString(new int[] {qos}), "granted");
        }

        void publish(String topic, String payload, int qos) throws MqttException {
            client.publish(topic, PahoClient.message(payload, qos));
        }

        Arrived receive() throws InterruptedException {
            Arrived message = messages.poll(Program.PATIENCE_SECONDS, SECONDS);
            Program.check(message != null, "a message did not come");
            return message;
        }

        List<Integer> receiveNumbers(int count) throws InterruptedException {
            List<Integer> numbers = new ArrayList<>();
            while (numbers.size() < count) {
                numbers.add(Integer.parseInt(receive().text()));
            }
            return numbers;
        }

        void disconnect() throws MqttException {
            client.disconnect();
            client.close();
        }

        @Override
        public void messageArrived(String topic, MqttMessage message) {
            messages.add(new Arrived(topic, message));
        }

        @Override
        public void disconnected(MqttDisconnectResponse response) {}

        @Override
        public void mqttErrorOccurred(MqttException error) {}

        @Override
        public void deliveryComplete(IMqttToken token) {}

        @Override
        public void connectComplete(boolean reconnect, String serverUri) {}

        @Override
        public void authPacketArrived(int reasonCode, MqttProperties properties) {}
    }

    private static void publishAndReceive() throws Exception {
        Client subscriber = Client.connect("paho-java-subscriber");
        Client publisher = Client.connect("paho-java-publisher");
        subscriber.subscribe("paho-java/+", 2);
        for (int qos = 0; qos <= 2; qos++) {
            for (int size : new int[] {0, 100, 100_000}) {
                byte[] payload = new byte[size];
                Arrays.fill(payload, (byte) qos);
                publisher.client.publish("paho-java/a", payload, qos, false);
                Arrived got = subscriber.receive();
                Program.checkEqual(got.topic, "paho-java/a", "topic");
                Program.checkEqual(got.message.getQos(), qos, "QoS");
                Program.check(!got.message.isRetained(), "RETAIN is set");
                Program.check(Arrays.equals(got.message.getPayload(), payload), "payload of " + size + " bytes");
            }
        }
        for (int qos = 0; qos <= 2; qos++) {
            for (int number : Program.upTo(200)) {
                publisher.publish("paho-java/order", String.valueOf(number), qos);
            }
            Program.checkEqual(subscriber.receiveNumbers(200), Program.upTo(200), "order at QoS " + qos);
        }
        subscriber.client.unsubscribe("paho-java/+");
        publisher.publish("paho-java/a", "nobody", 1);
        subscriber.disconnect();
        Program.check(subscriber.messages.isEmpty(), "a message after UNSUBSCRIBE");
        publisher.disconnect();
    }

    private static void retained() throws Exception {
        Client publisher = Client.connect("paho-java-publisher");
        publisher.client.publish("paho-java-retained", "state".getBytes(UTF_8), 1, true);
        Client subscriber = Client.connect("paho-java-subscriber");
        subscriber.subscribe("paho-java-retained", 1);
        Arrived got = subscriber.receive();
        Program.checkEqual(got.text(), "state", "retained message");
        Program.check(got.message.isRetained(), "RETAIN is not set");
        publisher.client.publish("paho-java-retained", new byte[0], 1, true);
        Program.checkEqual(subscriber.receive().text(), "", "the removal is forwarded");
        subscriber.disconnect();
        publisher.disconnect();
    }

    private static void will() throws Exception {
        Client heir = Client.connect("paho-java-heir");
        heir.subscribe("paho-java-will", 2);
        Client.connect("paho-java-polite", "paho-java-will", message("polite", 1)).disconnect();
        Client mortal = Client.connect("paho-java-mortal", "paho-java-will", message("gone", 2));
        mortal.client.disconnectWithWill();
        Arrived got = heir.receive();
        Program.checkEqual(got.text(), "gone", "will");
        Program.checkEqual(got.message.getQos(), 2, "QoS of the will");
        heir.disconnect();
    }

    private static void shared() throws Exception {
        List<Client> members = List.of(Client.connect("paho-java-member-1"), Client.connect("paho-java-member-2"));
        for (Client member : members) {
            member.subscribe("$share/paho-java/paho-java-work", 1);
        }
        Client publisher = Client.connect("paho-java-publisher");
        for (int number : Program.upTo(20)) {
            publisher.publish("paho-java-work", String.valueOf(number), 1);
        }
        List<Integer> numbers = members.get(0).receiveNumbers(10);
        numbers.addAll(members.get(1).receiveNumbers(10));
        Collections.sort(numbers);
        Program.checkEqual(numbers, Program.upTo(20), "shared messages");
        for (Client member : members) {
            member.disconnect();
        }
        publisher.disconnect();
    }

    private static void session() throws Exception {
        Client first = Client.resume("paho-java-session");
        Program.check(!first.sessionPresent, "a session before the first connection");
        first.subscribe("paho-java-session", 2);
        first.disconnect();
        Client publisher = Client.connect("paho-java-publisher");
        for (int number : Program.upTo(10)) {
            publisher.publish("paho-java-session", String.valueOf(number), 1 + number / 5);
        }
        Client again = Client.resume("paho-java-session");
        Program.check(again.sessionPresent, "the session is gone");
        List<Integer> numbers = again.receiveNumbers(10);
        Collections.sort(numbers);
        Program.checkEqual(numbers, Program.upTo(10), "messages that waited");
        again.disconnect();
        Client.connect("paho-java-session").disconnect();
        publisher.disconnect();
    }

    private static void properties() throws Exception {
        Client client = Client.connect("paho-java-properties");
        client.subscribe("paho-java-properties", 1);
        var user = List.of(new UserProperty("b", "2"), new UserProperty("a", "1"), new UserProperty("b", "2"));
        var sent = new MqttProperties();
        sent.setPayloadFormat(true);
        sent.setContentType("text/plain");
        sent.setResponseTopic("reply");
        sent.setCorrelationData(new byte[] {0, (byte) 255});
        sent.setMessageExpiryInterval(100L);
        sent.setUserProperties(user);
        MqttMessage message = message("x", 1);
        message.setProperties(sent);
        client.client.publish("paho-java-properties", message);
        MqttProperties got = client.receive().message.getProperties();
        Program.check(got.getPayloadFormat(), "payload format");
        Program.checkEqual(got.getContentType(), "text/plain", "content type");
        Program.checkEqual(got.getResponseTopic(), "reply", "response topic");
        Program.check(Arrays.equals(got.getCorrelationData(), sent.getCorrelationData()), "correlation data");
        Program.checkEqual(got.getUserProperties(), user, "user properties");
        long expiry = got.getMessageExpiryInterval();
        Program.check(expiry >= 95 && expiry <= 100, "expiry " + expiry);
        client.disconnect();
    }

    private static MqttMessage message(String payload, int qos) {
        MqttMessage message = new MqttMessage(payload.getBytes(UTF_8));
        message.setQos(qos);
        return message;
    }

    public static void main(String[] arguments) {
        var steps = new LinkedHashMap<String, Program.Step>();
        steps.put("publishAndReceive", PahoClient::publishAndReceive);
        steps.put("retained", PahoClient::retained);
        steps.put("will", PahoClient::will);
        steps.put("shared", PahoClient::shared);
        steps.put("session", PahoClient::session);
        steps.put("properties", PahoClient::properties);
        Program.run(arguments, steps);
    }
}
