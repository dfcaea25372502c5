import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Clients of Kafka for `tenbin verify`, over Kafka's own client library.
 *
 * <pre>java -cp "JARS/*" KafkaLoad.java ROLE TARGET TOPIC SIZE RATE GROUP RUN</pre>
 *
 * docs/VERIFY.md describes the arguments, variables and lines. A variable such as KAFKA_PRODUCER_LINGER_MS or
 * KAFKA_CONSUMER_FETCH_MIN_BYTES changes the library's setting of that name. All others have the library's defaults.
 */
public final class KafkaLoad {
    public static void main(String[] arguments) throws Exception {
        Lines lines = new Lines(new FileOutputStream(FileDescriptor.out));
        // The library logs to standard output.
        System.setOut(System.err);
        Settings settings = new Settings(arguments);
        Run run = new Run();
        int partitions = createTopic(settings);
        List<Client> clients = new ArrayList<>();
        AtomicInteger publishing = new AtomicInteger(settings.count);
        if (settings.isGroup()) {
            Subscriber.commitEnds(settings);
        }
        for (int number = settings.first; number < settings.first + settings.count; number++) {
            Client client = settings.role.equals("publisher")
                    ? new Publisher(settings, lines, run, number, number % partitions, publishing)
                    : new Subscriber(settings, lines, run, number);
            clients.add(client);
            client.start();
        }
        while (clients.stream().anyMatch(client -> client.owned < 0)
                || settings.isGroup() && clients.stream().mapToInt(client -> client.owned).sum() < partitions) {
            Thread.sleep(10);
        }
        lines.say("ready");
        run.follow(settings);
        for (Client client : clients) {
            client.end();
            client.join();
        }
        lines.flush();
        System.exit(0);
    }

    /** Creates the topic unless it exists, and waits until all partitions have leaders; returns their number. */
    private static int createTopic(Settings settings) throws Exception {
        NewTopic topic = new NewTopic(settings.topic, settings.number("PARTITIONS", 1),
                (short) settings.number("REPLICAS", 1));
        // Brokers that have just started refuse some requests, and learn of a topic only after a while.
        long untilNs = System.nanoTime() + TimeUnit.MINUTES.toNanos(1);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", settings.target))) {
            while (true) {
                try {
                    var all = admin.describeTopics(List.of(settings.topic)).allTopicNames().get();
                    var partitions = all.get(settings.topic).partitions();
                    if (partitions.stream().allMatch(partition -> partition.leader() != null)) {
                        return partitions.size();
                    }
                } catch (ExecutionException error) {
                    if (System.nanoTime() > untilNs) {
                        throw error;
                    }
                    admin.createTopics(List.of(topic)).all().toCompletionStage().exceptionally(any -> null)
                            .toCompletableFuture().get();
                }
                Thread.sleep(50);
            }
        }
    }

    /** Arguments and variables. */
    private static final class Settings {
        final String role, target, topic, group;
        final int size, run;
        final int count = number("COUNT", 1);
        final int first = number("FIRST", 0);
        final int publishers = number("PUBLISHERS", 1);
        final int messages = number("MESSAGES", Integer.MAX_VALUE);
        /** Time from one message of a publisher to the next; 0 for as fast as possible. */
        final long intervalNs;
        /** The clock of the run minus this machine's monotonic clock. */
        final long clockNs = Long.parseLong(text("CLOCK_NS", "0"));

        Settings(String[] arguments) {
            if (arguments.length != 7 || !List.of("publisher", "subscriber").contains(arguments[0])) {
                throw new IllegalArgumentException("usage: publisher|subscriber TARGET TOPIC SIZE RATE GROUP RUN");
            }
            role = arguments[0];
            target = arguments[1];
            topic = arguments[2];
            size = Integer.parseInt(arguments[3]);
            intervalNs = arguments[4].equals("max") ? 0 : Long.parseLong(text("INTERVAL_NS", "1000000"));
            group = arguments[5];
            run = Integer.parseInt(arguments[6]);
        }

        boolean isGroup() {
            return role.equals("subscriber") && !group.equals("-");
        }

        long nowNs() {
            return System.nanoTime() + clockNs;
        }

        String text(String name, String other) {
            return System.getenv().getOrDefault("TENBIN_" + name, other);
        }

        int number(String name, int other) {
            return (int) Math.min(Long.parseLong(text(name, Integer.toString(other))), Integer.MAX_VALUE);
        }

        /** Settings of the library: the program's own, and those of the environment. */
        Properties library(String prefix, Map<String, Object> own) {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", target);
            properties.putAll(own);
            System.getenv().forEach((name, value) -> {
                if (name.startsWith(prefix)) {
                    properties.put(name.substring(prefix.length()).toLowerCase().replace('_', '.'), value);
                }
            });
            return properties;
        }
    }

    /** Course of the run, as standard input tells it. */
    private static final class Run {
        final CountDownLatch started = new CountDownLatch(1);
        volatile long startNs;
        /** Messages that are due later are not sent. */
        volatile long stopNs = Long.MAX_VALUE;
        volatile boolean hasEnded;

        /** Reads standard input to its end. */
        void follow(Settings settings) throws IOException {
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                if (line.startsWith("start ")) {
                    startNs = Long.parseLong(line.substring(6));
                    started.countDown();
                } else if (line.equals("stop")) {
                    stopNs = settings.nowNs();
                }
            }
            stopNs = Math.min(stopNs, settings.nowNs());
            hasEnded = true;
            started.countDown();
        }
    }

    /** A thread, whose failure ends the program. */
    private abstract static class Client extends Thread {
        final Settings settings;
        final Lines lines;
        final Run run;
        final int number;
        /** Partitions that it has; below 0 until it is ready. */
        volatile int owned = -1;

        Client(Settings settings, Lines lines, Run run, int number) {
            super(settings.role + "-" + number);
            this.settings = settings;
            this.lines = lines;
            this.run = run;
            this.number = number;
        }

        @Override
        public final void run() {
            try {
                work();
            } catch (Throwable error) {
                System.err.println(getName() + ": " + error);
                lines.flush();
                Runtime.getRuntime().halt(1);
            }
        }

        abstract void work() throws Exception;

        /** Ends work that may last. */
        void end() {}
    }

    /** A publisher with a producer of its own. */
    private static final class Publisher extends Client {
        private final KafkaProducer<byte[], byte[]> producer;
        /** All messages of a stream go to one partition, so that their order is defined. */
        private final int partition;
        private final byte[] payload;
        private final Semaphore places = new Semaphore(settings.number("IN_FLIGHT", 1000));
        private final AtomicInteger publishing;

        Publisher(Settings settings, Lines lines, Run run, int stream, int partition, AtomicInteger publishing) {
            super(settings, lines, run, stream);
            this.partition = partition;
            this.publishing = publishing;
            payload = new byte[settings.size];
            Arrays.fill(payload, (byte) 'x');
            // The library tries for as long as a run may take.
            producer = new KafkaProducer<>(settings.library("KAFKA_PRODUCER_", Map.of("client.id", getName(),
                    "acks", settings.text("ACKS", "all"), "delivery.timeout.ms", Integer.MAX_VALUE,
                    "max.block.ms", Long.MAX_VALUE)), new ByteArraySerializer(), new ByteArraySerializer());
        }

        @Override
        void work() throws InterruptedException {
            producer.partitionsFor(settings.topic);
            owned = 0;
            run.started.await();
            try {
                for (int message = 0; message < settings.messages; message++) {
                    long dueNs = settings.intervalNs > 0 ? waitUntilDue(message) : waitForPlace();
                    if (dueNs > run.stopNs) {
                        break;
                    }
                    send(message, dueNs);
                }
                producer.flush();
            } catch (KafkaException | IllegalStateException error) {
                // The producer is closed at the end of the run.
                if (!run.hasEnded) {
                    throw error;
                }
            }
            if (publishing.decrementAndGet() == 0) {
                lines.say("done");
            }
        }

        /** Messages under way are given up. */
        @Override
        void end() {
            producer.close(Duration.ZERO);
        }

        /** A message keeps its due time, however late it is sent. */
        private long waitUntilDue(int message) {
            long dueNs = run.startNs + settings.intervalNs * number / settings.publishers
                    + settings.intervalNs * message;
            waitUntil(dueNs);
            return dueNs;
        }

        /** Waits until fewer messages than allowed are under way; the message is due now. */
        private long waitForPlace() throws InterruptedException {
            waitUntil(run.startNs);
            while (!places.tryAcquire(50, TimeUnit.MILLISECONDS)) {
                if (run.stopNs < Long.MAX_VALUE) {
                    break;
                }
            }
            return settings.nowNs();
        }

        private void waitUntil(long timeNs) {
            for (long leftNs = timeNs - settings.nowNs(); leftNs > 0 && timeNs <= run.stopNs;
                    leftNs = timeNs - settings.nowNs()) {
                LockSupport.parkNanos(Math.min(leftNs, TimeUnit.MILLISECONDS.toNanos(50)));
            }
        }

        private void send(int message, long dueNs) {
            ByteBuffer.wrap(payload).putLong(dueNs).putShort((short) settings.run).putInt(number).putInt(message)
                    .putShort((short) 0);
            long sentNs = settings.nowNs();
            // The library copies the payload before it returns.
            producer.send(new ProducerRecord<>(settings.topic, partition, null, payload), (metadata, error) -> {
                String end = error == null ? null : isRefused(error) ? "refused" : "-";
                lines.add("P", end, number, message, dueNs, sentNs, settings.nowNs());
                places.release();
            });
        }

        /** True if the broker has certainly not taken the message. */
        private static boolean isRefused(Exception error) {
            return error instanceof ApiException && !(error instanceof RetriableException)
                    && !(error instanceof UnknownServerException);
        }
    }

    /** A subscriber with a consumer of its own. */
    private static final class Subscriber extends Client implements ConsumerRebalanceListener {
        private final KafkaConsumer<byte[], byte[]> consumer;

        Subscriber(Settings settings, Lines lines, Run run, int receiver) {
            super(settings, lines, run, receiver);
            consumer = consumer(settings, getName());
        }

        private static KafkaConsumer<byte[], byte[]> consumer(Settings settings, String id) {
            Map<String, Object> own = new HashMap<>(Map.of("client.id", id, "auto.offset.reset", "earliest"));
            if (settings.isGroup()) {
                // Groups of other runs are others.
                own.put("group.id", settings.group + "-" + settings.run);
            }
            return new KafkaConsumer<>(settings.library("KAFKA_CONSUMER_", own),
                    new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }

        private static List<TopicPartition> partitions(Settings settings, KafkaConsumer<byte[], byte[]> consumer) {
            return consumer.partitionsFor(settings.topic).stream()
                    .map(partition -> new TopicPartition(partition.topic(), partition.partition())).toList();
        }

        /** Commits the present ends for the group: its members get all messages from now on, and no earlier ones. */
        static void commitEnds(Settings settings) {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings, "ends")) {
                var ends = consumer.endOffsets(partitions(settings, consumer));
                consumer.commitSync(ends.entrySet().stream()
                        .collect(Collectors.toMap(Map.Entry::getKey, end -> new OffsetAndMetadata(end.getValue()))));
            }
        }

        @Override
        @SuppressWarnings("deprecation") // Kafka 4.0 has no other way to bound the time of a close.
        void work() {
            if (settings.isGroup()) {
                consumer.subscribe(List.of(settings.topic), this);
            } else {
                List<TopicPartition> partitions = partitions(settings, consumer);
                consumer.assign(partitions);
                consumer.seekToEnd(partitions);
                // Else the first poll would look the position up, and miss messages before it.
                partitions.forEach(consumer::position);
                owned = partitions.size();
            }
            double slow = Double.parseDouble(settings.text("SLOW", "0"));
            while (!run.hasEnded) {
                var records = consumer.poll(Duration.ofMillis(100));
                long nowNs = settings.nowNs();
                for (var record : records) {
                    if (slow > 0) {
                        LockSupport.parkNanos((long) (1e9 / slow));
                        nowNs = settings.nowNs();
                    }
                    take(record.value(), nowNs);
                }
            }
            consumer.close(Duration.ofSeconds(2));
        }

        private void take(byte[] payload, long nowNs) {
            ByteBuffer stamp = ByteBuffer.wrap(payload);
            if (payload.length == settings.size && (stamp.getShort(8) & 0xffff) == settings.run) {
                lines.add("S", "0", number, stamp.getInt(10), stamp.getInt(14), stamp.getLong(0), nowNs);
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            owned = consumer.assignment().size();
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}
    }

    /** Standard output. Lines are collected for some milliseconds. */
    private static final class Lines {
        private final OutputStream out;
        private final Object writing = new Object();
        private byte[] filling = new byte[1 << 20];
        private byte[] full = new byte[1 << 20];
        private int length;

        Lines(OutputStream out) {
            this.out = out;
            Thread flusher = new Thread(() -> {
                while (true) {
                    LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(2));
                    flush();
                }
            }, "lines");
            flusher.setDaemon(true);
            flusher.start();
        }

        void say(String line) {
            synchronized (this) {
                append(line);
                filling[length++] = '\n';
            }
            flush();
        }

        /** Adds a line. A word of a P line replaces the last number; that of an S line follows it. */
        void add(String kind, String word, long a, long b, long c, long d, long e) {
            if (length > filling.length / 2) {
                flush();
            }
            synchronized (this) {
                append(kind);
                append(a);
                append(b);
                append(c);
                append(d);
                if (word == null || kind.equals("S")) {
                    append(e);
                }
                if (word != null) {
                    filling[length++] = ' ';
                    append(word);
                }
                filling[length++] = '\n';
            }
        }

        private void append(String text) {
            for (int place = 0; place < text.length(); place++) {
                filling[length++] = (byte) text.charAt(place);
            }
        }

        /** Appends a space and the digits of a number that is not negative. */
        private void append(long number) {
            int digits = 1;
            for (long rest = number; rest >= 10; rest /= 10) {
                digits++;
            }
            filling[length] = ' ';
            length += digits;
            long rest = number;
            for (int place = length; digits > 0; place--, digits--) {
                filling[place] = (byte) ('0' + rest % 10);
                rest /= 10;
            }
            length++;
        }

        void flush() {
            synchronized (writing) {
                int count;
                synchronized (this) {
                    byte[] next = full;
                    full = filling;
                    filling = next;
                    count = length;
                    length = 0;
                }
                try {
                    out.write(full, 0, count);
                } catch (IOException error) {
                    // Nobody reads the lines any more.
                    Runtime.getRuntime().halt(1);
                }
            }
        }
    }
}
