package mainstem;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;

/**
 * The broker under test, one for all tests of a class: a running one whose Kafka listener is at MAINSTEM_KAFKA, else a
 * process of the binary MAINSTEM_BIN, else of the binary that cargo built.
 */
abstract class WithKafka {
    static final int DEADLINE_S = 30;
    private static final Pattern READY = Pattern.compile("kafka listening on (\\S+:\\d+)$");
    private static final int START_S = 10;
    private static final int DRAIN_S = 15;

    static String bootstrap;
    static Admin admin;
    private static Process process;
    private static Path data;

    @BeforeAll
    static void start() throws Exception {
        bootstrap = System.getenv("MAINSTEM_KAFKA");
        if (bootstrap == null) {
            data = Files.createTempDirectory("mainstem-test-");
            process = launch("--data", data.toString());
            bootstrap = listening(process);
        }
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    /** Starts a broker on free ports, with further flags. */
    static Process launch(String... flags) throws IOException {
        List<String> command = new ArrayList<>(List.of(binary(), "--listen", "127.0.0.1:0", "--kafka-listen",
                "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--set",
                "kafka.group_consumer_heartbeat_interval_ms=200"));
        command.addAll(List.of(flags));
        Process broker = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        Runtime.getRuntime().addShutdownHook(new Thread(broker::destroyForcibly));
        return broker;
    }

    /** Waits until a broker listens, and returns the address of its Kafka listener. */
    static String listening(Process broker) throws Exception {
        CompletableFuture<Matcher> ready = new CompletableFuture<>();
        Thread reader = new Thread(() -> readStdout(broker.inputReader(), ready));
        reader.setDaemon(true);
        reader.start();
        return ready.get(START_S, TimeUnit.SECONDS).group(1);
    }

    /** Reads to the end, so that the broker never blocks on a full pipe. */
    private static void readStdout(BufferedReader stdout, CompletableFuture<Matcher> ready) {
        stdout.lines().map(READY::matcher).filter(Matcher::find).forEach(ready::complete);
        ready.completeExceptionally(new IOException("the broker ended without saying where it listens"));
    }

    static String binary() {
        String named = System.getenv("MAINSTEM_BIN");
        if (named != null) {
            return named;
        }
        for (String profile : new String[] {"release", "debug"}) {
            File built = new File("../../../target/" + profile + "/mainstem");
            if (built.exists()) {
                return built.getPath();
            }
        }
        throw new IllegalStateException("no mainstem binary: build one, or name it in MAINSTEM_BIN");
    }

    /** SIGTERM drains the broker, which must then exit with status 0. */
    @AfterAll
    static void stop() throws Exception {
        admin.close();
        if (process == null) {
            return;
        }
        terminate(process, data);
        process = null;
    }

    /** Drains a broker, and deletes its data. */
    static void terminate(Process broker, Path directory) throws InterruptedException {
        broker.destroy();
        boolean ended = broker.waitFor(DRAIN_S, TimeUnit.SECONDS);
        if (!ended) {
            broker.destroyForcibly();
        }
        delete(directory);
        assertTrue(ended, "the broker did not stop within " + DRAIN_S + " s of SIGTERM");
        assertEquals(0, broker.exitValue(), "exit status after SIGTERM");
    }

    static void delete(Path path) {
        try (var inside = Files.walk(path)) {
            inside.sorted((a, b) -> b.compareTo(a)).map(Path::toFile).forEach(File::delete);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /** A name that no other test uses, for a topic, a group or a client. */
    static String unique(String what) {
        return what + "-" + UUID.randomUUID();
    }

    static String topic(int partitions) throws Exception {
        return topic(partitions, Map.of());
    }

    static String topic(int partitions, Map<String, String> configs) throws Exception {
        String name = unique("topic");
        get(admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1).configs(configs))).all());
        return name;
    }

    static KafkaProducer<String, String> producer(Map<String, ?> settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        all.putAll(settings);
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }

    /** A consumer that starts at the earliest offset and commits explicitly. */
    static KafkaConsumer<String, String> consumer(String group, Map<String, ?> settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", group,
                "auto.offset.reset", "earliest", "enable.auto.commit", "false"));
        all.putAll(settings);
        // In the consumer protocol, the broker sets the interval.
        if (!"consumer".equals(all.get("group.protocol"))) {
            all.put("heartbeat.interval.ms", "300");
        }
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    static KafkaConsumer<String, String> consumer(String group) {
        return consumer(group, Map.of());
    }

    /** Sends all records and waits until all are acknowledged. */
    static List<RecordMetadata> sendAll(KafkaProducer<String, String> producer, String topic, List<String> values)
            throws Exception {
        List<Future<RecordMetadata>> underWay = new ArrayList<>();
        for (String value : values) {
            underWay.add(producer.send(new ProducerRecord<>(topic, 0, null, value)));
        }
        List<RecordMetadata> done = new ArrayList<>();
        for (Future<RecordMetadata> each : underWay) {
            done.add(get(each));
        }
        return done;
    }

    /** Sends all records with a new producer. */
    static void produce(String topic, List<String> values) throws Exception {
        try (var producer = producer(Map.of())) {
            sendAll(producer, topic, values);
        }
    }

    /** Polls until there are `count` records, and fails after the deadline. */
    static List<ConsumerRecord<String, String>> take(KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> got = new ArrayList<>();
        until(() -> {
            consumer.poll(Duration.ofMillis(100)).forEach(got::add);
            return got.size() >= count;
        }, () -> count + " records, there are " + got.size());
        return got;
    }

    /** The records of a topic, read by a new group. */
    static List<ConsumerRecord<String, String>> read(String topic, int count, Map<String, ?> settings) {
        try (var consumer = consumer(unique("reader"), settings)) {
            consumer.subscribe(List.of(topic));
            return take(consumer, count);
        }
    }

    static List<String> values(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).toList();
    }

    static List<String> numbers(int count) {
        return IntStream.range(0, count).mapToObj(String::valueOf).toList();
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static <T> T get(Future<T> future) throws Exception {
        return future.get(DEADLINE_S, TimeUnit.SECONDS);
    }

    /** Repeats `condition` until it holds, and fails after the deadline. */
    static void until(BooleanSupplier condition, java.util.function.Supplier<String> what) {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(DEADLINE_S);
        while (!condition.getAsBoolean()) {
            assertTrue(System.nanoTime() < deadline, () -> "not within " + DEADLINE_S + " s: " + what.get());
            Thread.onSpinWait();
        }
    }
}
