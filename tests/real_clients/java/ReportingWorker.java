import static java.nio.charset.StandardCharsets.UTF_8;

import com.hivemq.client.mqtt.mqtt5.Mqtt5Client;
import java.time.Duration;
import java.util.logging.LogManager;
import org.eclipse.paho.mqttv5.client.MqttConnectionOptions;
import org.eclipse.paho.mqttv5.client.persist.MemoryPersistence;
import tenbin.load.HiveMqWorker;
import tenbin.load.PahoLoadReporter;
import tenbin.load.PahoWorker;
import tenbin.load.Rejection;

/**
 * A worker of a share group that reports its load: HOST PORT GROUP FILTER SERVICE_TIME_MS [hivemq | paho].
 *
 * <p>Prints "ready" when it has subscribed, then each message's payload when it is processed. With HiveMQ's client, a
 * payload "retry" is rejected at its first delivery, and "dead" always. SIGTERM drains and ends it.
 */
final class ReportingWorker {
    private ReportingWorker() {}

    public static void main(String[] arguments) throws Exception {
        if (arguments.length < 5) {
            System.err.println("usage: ReportingWorker HOST PORT GROUP FILTER SERVICE_TIME_MS [hivemq | paho]");
            System.exit(2);
        }
        // Libraries log each lost connection.
        LogManager.getLogManager().reset();
        String host = arguments[0];
        int port = Integer.parseInt(arguments[1]);
        String group = arguments[2];
        String filter = arguments[3];
        long milliseconds = Long.parseLong(arguments[4]);
        if (arguments.length > 5 && arguments[5].equals("paho")) {
            String uri = "tcp://" + host + ":" + port;
            var reporter = new PahoLoadReporter(uri, "", new MemoryPersistence());
            var worker = new PahoWorker(reporter, new MqttConnectionOptions(), group, filter);
            worker.onSubscribed(() -> System.out.println("ready"));
            worker.run((topic, message) -> {
                Thread.sleep(milliseconds);
                System.out.println(new String(message.getPayload(), UTF_8));
            });
            return;
        }
        var worker = new HiveMqWorker(Mqtt5Client.builder().serverHost(host).serverPort(port), group, filter);
        worker.onSubscribed(() -> System.out.println("ready"));
        worker.run(message -> {
            Thread.sleep(milliseconds);
            String payload = new String(message.getPayloadAsBytes(), UTF_8);
            boolean isFirst = message.getUserProperties().asList().stream()
                    .noneMatch(property -> property.getName().toString().equals("deliveries"));
            if (payload.equals("dead")) {
                throw Rejection.deadLetter("it says so");
            }
            if (payload.equals("retry") && isFirst) {
                throw Rejection.retryAfter(Duration.ofMillis(200));
            }
            System.out.println(payload);
        });
    }
}
