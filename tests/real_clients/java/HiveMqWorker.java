import static java.nio.charset.StandardCharsets.UTF_8;

import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt5.Mqtt5AsyncClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5Client;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * A worker of a share group with HiveMQ's client (MQTT 5.0): HOST PORT CLIENT_ID FACTOR STYLE.
 *
 * <p>STYLE is "blocking" (works in the callback; the library acknowledges earlier) or "manual" (works in a callback on a
 * thread of the application, and acknowledges after the work). Further arguments: "concurrency=N" and "receive-maximum=N"
 * tell the broker so. A message's payload is "NUMBER SENT_US WORK_US"; its work takes FACTOR times WORK_US. Prints
 * "NUMBER BEGUN_US" when a message's work begins.
 */
final class HiveMqWorker {
    private static int factor;

    private HiveMqWorker() {}

    public static void main(String[] arguments) {
        factor = Integer.parseInt(arguments[3]);
        Map<String, String> told = Stream.of(arguments).skip(5).map(argument -> argument.split("="))
                .collect(Collectors.toMap(pair -> pair[0], pair -> pair[1]));
        Mqtt5AsyncClient client = Mqtt5Client.builder()
                .identifier(arguments[2])
                .serverHost(arguments[0])
                .serverPort(Integer.parseInt(arguments[1]))
                .buildAsync();
        var connect = client.connectWith();
        if (told.containsKey("concurrency")) {
            connect = connect.userProperties().add("concurrency", told.get("concurrency")).applyUserProperties();
        }
        if (told.containsKey("receive-maximum")) {
            int maximum = Integer.parseInt(told.get("receive-maximum"));
            connect = connect.restrictions().receiveMaximum(maximum).applyRestrictions();
        }
        connect.send().join();
        var subscribe = client.subscribeWith().topicFilter("$share/g/work").qos(MqttQos.AT_LEAST_ONCE);
        if (arguments[4].equals("manual")) {
            subscribe.callback(message -> {
                work(message);
                message.acknowledge();
            }).executor(Executors.newSingleThreadExecutor()).manualAcknowledgement(true).send().join();
        } else {
            subscribe.callback(HiveMqWorker::work).send().join();
        }
    }

    private static void work(Mqtt5Publish message) {
        String[] fields = new String(message.getPayloadAsBytes(), UTF_8).split(" ");
        System.out.println(fields[0] + " " + ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()));
        try {
            TimeUnit.MICROSECONDS.sleep(Long.parseLong(fields[2]) * factor);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
