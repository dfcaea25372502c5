import java.io.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/**
 * Clients of Kafka for `tenbin-verify`, over Kafka's own client library.
 *
 * <pre>java -cp "JARS/*" KafkaLoad.java ROLE TARGET TOPIC SIZE RATE GROUP RUN</pre>
 *
 * docs/VERIFY.md describes the arguments, variables and lines. A variable such as KAFKA_PRODUCER_LINGER_MS or
 * KAFKA_CONSUMER_FETCH_MIN_BYTES changes the library's setting of that name. All others have the library's defaults.
 */
public final class KafkaLoad {
    public static void main(String[] arguments) throws Exception {
        Settings settings = new Settings(arguments);
        Run run = new Run(settings);
        // The library logs to standard output.
        System.setOut(System.err);
        int partitions = createTopic(settings);
        List<Client> clients = new ArrayList<>();
        if (settings.isGroup()) {
            Subscriber.commitEnds(settings);
        }
        for (int number = settings.first; number < settings.first + settings.count; number++) {
            Client client = settings.role.equals("publisher")
                    ? new Publisher(run, number, number % partitions)
                    : new Subscriber(run, number);
            clients.add(client);
            client.start();
        }
        while (clients.stream().anyMatch(client -> client.owned < 0)
                || settings.isGroup() && clients.stream().mapToInt(client -> client.owned).sum() < partitions) {
            Thread.sleep(10);
        }
        run.lines.say("ready");
        run.follow();
        for (Client client : clients) {
            client.end();
            client.join();
        }
        run.lines.flush();
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
        /** Messages a second of a slow subscriber; 0 for others. */
        final double slow = Double.parseDouble(text("SLOW", "0"));
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
        final Settings settings;
        final Lines lines = new Lines();
        /** Publishers that have messages left. */
        final AtomicInteger publishing;
        final CountDownLatch started = new CountDownLatch(1);
        volatile long startNs;
        /** Messages that are due later are not sent. */
        volatile long stopNs = Long.MAX_VALUE;
        volatile boolean hasEnded;

        Run(Settings settings) {
            this.settings = settings;
            publishing = new AtomicInteger(settings.count);
            Thread flusher = new Thread(lines::flushFromTimeToTime);
            flusher.setDaemon(true);
            flusher.start();
        }

        /** Reads standard input to its end. */
        void follow() throws IOException {
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
        final Run run;
        final int number;
        /** Partitions that it has; below 0 until it is ready. */
        volatile int owned = -1;

        Client(Run run, int number) {
            super(run.settings.role + "-" + number);
            this.settings = run.settings;
            this.run = run;
            this.number = number;
        }

        @Override
        public final void run() {
            try {
                work();
            } catch (Throwable error) {
                System.err.println(getName() + ": " + error);
                run.lines.flush();
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

        Publisher(Run run, int stream, int partition) {
            super(run, stream);
            this.partition = partition;
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
            if (run.publishing.decrementAndGet() == 0) {
                run.lines.say("done");
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
            while (!places.tryAcquire(50, TimeUnit.MILLISECONDS) && run.stopNs == Long.MAX_VALUE) {}
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
                String word = error == null ? "" : isRefused(error) ? " refused" : " -";
                run.lines.add('P', number, message, dueNs, sentNs, error == null ? settings.nowNs() : -1, word);
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

        Subscriber(Run run, int receiver) {
            super(run, receiver);
            consumer = consumer(settings, getName());
        }

        private static KafkaConsumer<byte[], byte[]> consumer(Settings settings, String id) {
            Map<String, Object> own = new HashMap<>(Map.of("client.id", id, "auto.offset.reset", "earliest"));
            if (settings.isGroup()) {
                // Groups of other runs are others.
                own.put("group.id", settings.group + "-" + settings.run);
            }
            if (settings.slow > 0) {
                // One poll takes a tenth of a second, so that the member of a group stays one.
                own.put("max.poll.records", (int) Math.max(1, Math.min(500, settings.slow / 10)));
            }
            return new KafkaConsumer<>(settings.library("KAFKA_CONSUMER_", own),
                    new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }

        private static List<TopicPartition> partitions(Settings settings, KafkaConsumer<byte[], byte[]> consumer) {
            return consumer.partitionsFor(settings.topic).stream()
                    .map(one -> new TopicPartition(one.topic(), one.partition())).toList();
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
            while (!run.hasEnded) {
                var records = consumer.poll(Duration.ofMillis(100));
                long nowNs = settings.nowNs();
                for (var record : records) {
                    if (settings.slow > 0) {
                        LockSupport.parkNanos((long) (1e9 / settings.slow));
                        nowNs = settings.nowNs();
                    }
                    if (run.hasEnded) {
                        break;
                    }
                    take(record.value(), nowNs);
                }
            }
            consumer.close(Duration.ofSeconds(2));
        }

        /** Ends the pause of a slow subscriber. */
        @Override
        void end() {
            LockSupport.unpark(this);
        }

        private void take(byte[] payload, long nowNs) {
            ByteBuffer stamp = ByteBuffer.wrap(payload);
            if (payload.length == settings.size && (stamp.getShort(8) & 0xffff) == settings.run) {
                run.lines.add('S', number, stamp.getInt(10), stamp.getInt(14), stamp.getLong(0), nowNs, " 0");
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
        private static final int MOST = 1 << 20;
        private final OutputStream out = new FileOutputStream(FileDescriptor.out);
        private StringBuilder lines = new StringBuilder(MOST);
        private StringBuilder written = new StringBuilder(MOST);

        void flushFromTimeToTime() {
            while (true) {
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(2));
                flush();
            }
        }

        synchronized void say(String line) {
            lines.append(line).append('\n');
        }

        /** Adds a line; a time below 0 and an empty word are left out. */
        void add(char kind, long a, long b, long c, long d, long timeNs, String word) {
            boolean isFull;
            synchronized (this) {
                lines.append(kind).append(' ').append(a).append(' ').append(b).append(' ').append(c).append(' ').append(d);
                if (timeNs >= 0) {
                    lines.append(' ').append(timeNs);
                }
                lines.append(word).append('\n');
                isFull = lines.length() > MOST / 2;
            }
            if (isFull) {
                flush();
            }
        }

        void flush() {
            synchronized (out) {
                synchronized (this) {
                    StringBuilder next = written;
                    written = lines;
                    lines = next;
                }
                try {
                    out.write(written.toString().getBytes(StandardCharsets.ISO_8859_1));
                    written.setLength(0);
                } catch (IOException error) {
                    // Nobody reads the lines any more.
                    Runtime.getRuntime().halt(1);
                }
            }
        }
    }
}
