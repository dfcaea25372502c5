import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.SECONDS;

import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt5.Mqtt5BlockingClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5BlockingClient.Mqtt5Publishes;
import com.hivemq.client.mqtt.mqtt5.Mqtt5Client;
import com.hivemq.client.mqtt.mqtt5.datatypes.Mqtt5UserProperties;
import com.hivemq.client.mqtt.mqtt5.message.disconnect.Mqtt5DisconnectReasonCode;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PayloadFormatIndicator;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Objects;
import java.util.stream.Collectors;

/** Exercises a broker with HiveMQ's Java client (MQTT 5.0). */
final class HiveMqClient {
    /** A client whose messages can be waited for. */
    private static final class Client {
        private final Mqtt5BlockingClient client;
        private final Mqtt5Publishes messages;
        private boolean sessionPresent;

        private Client(String id, Mqtt5Publish will) throws Exception {
            var builder = Mqtt5Client.builder().identifier(id);
            builder = builder.serverHost(Program.url.getHost()).serverPort(Program.url.getPort());
            if (Program.isTls()) {
                builder = builder.sslConfig().trustManagerFactory(Program.trust()).applySslConfig();
            }
            if (Program.isWebSocket()) {
                builder = builder.webSocketConfig().serverPath(Program.url.getPath().substring(1)).applyWebSocketConfig();
            }
            if (will != null) {
                builder = builder.willPublish(will.asWill());
            }
            client = builder.buildBlocking();
            // Before CONNECT, so that nothing a session brings is missed.
            messages = client.publishes(MqttGlobalPublishFilter.ALL);
        }

        static Client connect(String id) throws Exception {
            return connect(id, null);
        }

        static Client connect(String id, Mqtt5Publish will) throws Exception {
            Client self = new Client(id, will);
            self.client.connectWith().cleanStart(true).send();
            return self;
        }

        static Client resume(String id) throws Exception {
            Client self = new Client(id, null);
            var connack = self.client.connectWith().cleanStart(false).sessionExpiryInterval(3600).send();
            self.sessionPresent = connack.isSessionPresent();
            return self;
        }

        void subscribe(String topic, int qos) {
            var suback = client.subscribeWith().topicFilter(topic).qos(qos(qos)).send();
            var granted = suback.getReasonCodes().stream().map(code -> code.getCode()).collect(Collectors.toList());
            Program.checkEqual(granted, List.of(qos), "granted");
        }

        void publish(String topic, String payload, int qos) {
            publish(message(topic, payload, qos));
        }

        void publish(Mqtt5Publish message) {
            var error = client.publish(message).getError();
            Program.check(error.isEmpty(), "a message was refused: " + error);
        }

        Mqtt5Publish receive() throws InterruptedException {
            var message = messages.receive(Program.PATIENCE_SECONDS, SECONDS);
            Program.check(message.isPresent(), "a message did not come");
            return message.get();
        }

        List<Integer> receiveNumbers(int count) throws InterruptedException {
            List<Integer> numbers = new ArrayList<>();
            while (numbers.size() < count) {
                numbers.add(Integer.parseInt(text(receive())));
            }
            return numbers;
        }

        void disconnect() {
            client.disconnect();
        }
    }

    private static void publishAndReceive() throws Exception {
        Client subscriber = Client.connect("java-subscriber");
        Client publisher = Client.connect("java-publisher");
        subscriber.subscribe("java/+", 2);
        for (int qos = 0; qos <= 2; qos++) {
            for (int size : new int[] {0, 100, 100_000}) {
                byte[] payload = new byte[size];
                Arrays.fill(payload, (byte) qos);
                publisher.publish(Mqtt5Publish.builder().topic("java/a").qos(qos(qos)).payload(payload).build());
                Mqtt5Publish message = subscriber.receive();
                Program.checkEqual(message.getTopic().toString(), "java/a", "topic");
                Program.checkEqual(message.getQos(), qos(qos), "QoS");
                Program.check(!message.isRetain(), "RETAIN is set");
                Program.check(Arrays.equals(message.getPayloadAsBytes(), payload), "payload of " + size + " bytes");
            }
        }
        for (int qos = 0; qos <= 2; qos++) {
            for (int number : Program.upTo(200)) {
                publisher.publish("java/order", String.valueOf(number), qos);
            }
            Program.checkEqual(subscriber.receiveNumbers(200), Program.upTo(200), "order at QoS " + qos);
        }
        subscriber.client.unsubscribeWith().topicFilter("java/+").send();
        publisher.publish("java/a", "nobody", 1);
        Program.check(subscriber.messages.receiveNow().isEmpty(), "a message after UNSUBSCRIBE");
        subscriber.disconnect();
        publisher.disconnect();
    }

    private static void retained() throws Exception {
        Client publisher = Client.connect("java-publisher");
        publisher.publish(message("java-retained", "state", 1).extend().retain(true).build());
        Client subscriber = Client.connect("java-subscriber");
        subscriber.subscribe("java-retained", 1);
        Mqtt5Publish message = subscriber.receive();
        Program.checkEqual(text(message), "state", "retained message");
        Program.check(message.isRetain(), "RETAIN is not set");
        publisher.publish(message("java-retained", "", 1).extend().retain(true).build());
        Program.checkEqual(text(subscriber.receive()), "", "the removal is forwarded");
        subscriber.disconnect();
        publisher.disconnect();
    }

    private static void will() throws Exception {
        Client heir = Client.connect("java-heir");
        heir.subscribe("java-will", 2);
        Client.connect("java-polite", message("java-will", "polite", 1)).disconnect();
        Client mortal = Client.connect("java-mortal", message("java-will", "gone", 2));
        mortal.client.disconnectWith().reasonCode(Mqtt5DisconnectReasonCode.DISCONNECT_WITH_WILL_MESSAGE).send();
        Mqtt5Publish message = heir.receive();
        Program.checkEqual(text(message), "gone", "will");
        Program.checkEqual(message.getQos(), qos(2), "QoS of the will");
        heir.disconnect();
    }

    private static void shared() throws Exception {
        List<Client> members = List.of(Client.connect("java-member-1"), Client.connect("java-member-2"));
        members.forEach(member -> member.subscribe("$share/java/java-work", 1));
        Client publisher = Client.connect("java-publisher");
        for (int number : Program.upTo(20)) {
            publisher.publish("java-work", String.valueOf(number), 1);
        }
        List<Integer> numbers = members.get(0).receiveNumbers(10);
        numbers.addAll(members.get(1).receiveNumbers(10));
        Collections.sort(numbers);
        Program.checkEqual(numbers, Program.upTo(20), "shared messages");
        members.forEach(Client::disconnect);
        publisher.disconnect();
    }

    private static void session() throws Exception {
        Client first = Client.resume("java-session");
        Program.check(!first.sessionPresent, "a session before the first connection");
        first.subscribe("java-session", 2);
        first.disconnect();
        Client publisher = Client.connect("java-publisher");
        for (int number : Program.upTo(10)) {
            publisher.publish("java-session", String.valueOf(number), 1 + number / 5);
        }
        Client again = Client.resume("java-session");
        Program.check(again.sessionPresent, "the session is gone");
        List<Integer> numbers = again.receiveNumbers(10);
        Collections.sort(numbers);
        Program.checkEqual(numbers, Program.upTo(10), "messages that waited");
        again.disconnect();
        Client.connect("java-session").disconnect();
        publisher.disconnect();
    }

    private static void properties() throws Exception {
        Client client = Client.connect("java-properties");
        client.subscribe("java-properties", 1);
        var user = Mqtt5UserProperties.builder().add("b", "2").add("a", "1").add("b", "2").build();
        Mqtt5Publish sent = message("java-properties", "x", 1).extend()
                .payloadFormatIndicator(Mqtt5PayloadFormatIndicator.UTF_8)
                .contentType("text/plain")
                .responseTopic("reply")
                .correlationData(new byte[] {0, (byte) 255})
                .messageExpiryInterval(100)
                .userProperties(user)
                .build();
        client.publish(sent);
        Mqtt5Publish got = client.receive();
        Program.checkEqual(got.getPayloadFormatIndicator(), sent.getPayloadFormatIndicator(), "payload format");
        Program.checkEqual(got.getContentType(), sent.getContentType(), "content type");
        Program.checkEqual(got.getResponseTopic(), sent.getResponseTopic(), "response topic");
        Program.checkEqual(got.getCorrelationData().map(ByteBuffer::remaining).orElse(0), 2, "correlation data");
        Program.checkEqual(got.getUserProperties(), user, "user properties");
        long expiry = got.getMessageExpiryInterval().orElse(0);
        Program.check(expiry >= 95 && expiry <= 100, "expiry " + expiry);
        client.disconnect();
    }

    private static Mqtt5Publish message(String topic, String payload, int qos) {
        return Mqtt5Publish.builder().topic(topic).qos(qos(qos)).payload(payload.getBytes(UTF_8)).build();
    }

    private static MqttQos qos(int code) {
        return Objects.requireNonNull(MqttQos.fromCode(code));
    }

    private static String text(Mqtt5Publish message) {
        return new String(message.getPayloadAsBytes(), UTF_8);
    }

    public static void main(String[] arguments) {
        var steps = new LinkedHashMap<String, Program.Step>();
        steps.put("publishAndReceive", HiveMqClient::publishAndReceive);
        steps.put("retained", HiveMqClient::retained);
        steps.put("will", HiveMqClient::will);
        steps.put("shared", HiveMqClient::shared);
        steps.put("session", HiveMqClient::session);
        steps.put("properties", HiveMqClient::properties);
        Program.run(arguments, steps);
    }
}
