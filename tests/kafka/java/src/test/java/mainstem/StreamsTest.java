package mainstem;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Kafka Streams counts words, exactly once. */
class StreamsTest extends WithKafka {
    private static final int LINES = 300;

    @TempDir
    Path state;

    private static Topology wordCount(String source, String sink) {
        var builder = new StreamsBuilder();
        builder.<String, String>stream(source)
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count()
                .toStream()
                .mapValues(String::valueOf)
                .to(sink, Produced.with(Serdes.String(), Serdes.String()));
        return builder.build();
    }

    private KafkaStreams start(String name, Topology topology, String directory, Map<Integer, Throwable> failures) {
        var settings = new Properties();
        settings.putAll(Map.of("application.id", name, "bootstrap.servers", bootstrap, "processing.guarantee",
                "exactly_once_v2", "commit.interval.ms", "100", "state.dir", state.resolve(directory).toString(),
                "default.key.serde", Serdes.StringSerde.class.getName(), "default.value.serde",
                Serdes.StringSerde.class.getName(), "auto.offset.reset", "earliest", "num.stream.threads", "2",
                "consumer.heartbeat.interval.ms", "300"));
        var streams = new KafkaStreams(topology, settings);
        streams.setUncaughtExceptionHandler(failure -> {
            failures.put(failures.size(), failure);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        return streams;
    }

    private static List<String> lines(int from) {
        return IntStream.range(from, from + LINES).mapToObj(number -> "all w" + number % 7 + " n" + number).toList();
    }

    private static Map<String, String> counted(List<String> lines) {
        return lines.stream().flatMap(line -> Arrays.stream(line.split(" ")))
                .collect(Collectors.groupingBy(Function.identity(), Collectors.collectingAndThen(Collectors.counting(),
                        String::valueOf)));
    }

    private static void send(String topic, List<String> lines) throws Exception {
        try (var producer = producer(Map.of())) {
            for (String line : lines) {
                producer.send(new ProducerRecord<>(topic, null, line));
            }
            producer.flush();
        }
    }

    @Test
    void wordsAreCountedOnceAlthoughTheApplicationLosesItsState() throws Exception {
        String name = unique("words");
        String source = topic(2);
        String sink = topic(2);
        Map<Integer, Throwable> failures = new HashMap<>();
        Map<String, String> counts = new HashMap<>();
        List<String> first = lines(0);
        List<String> second = lines(LINES);
        List<String> both = java.util.stream.Stream.of(first, second).flatMap(List::stream).toList();
        try (var consumer = consumer(unique("reader"), Map.of("isolation.level", "read_committed"))) {
            consumer.subscribe(List.of(sink));
            for (int life = 0; life < 2; life++) {
                // The second run restores its state from the changelog.
                try (var streams = start(name, wordCount(source, sink), "life-" + life, failures)) {
                    send(source, life == 0 ? first : second);
                    Map<String, String> expected = counted(life == 0 ? first : both);
                    until(() -> {
                        consumer.poll(Duration.ofMillis(50)).forEach(each -> counts.put(each.key(), each.value()));
                        return !failures.isEmpty() || counts.equals(expected);
                    }, () -> "the counts; there are " + counts.size() + " of " + expected.size());
                    // Otherwise it stays in the group until its session times out.
                    streams.close(CloseOptions.groupMembershipOperation(GroupMembershipOperation.LEAVE_GROUP)
                            .withTimeout(Duration.ofSeconds(DEADLINE_S)));
                }
                assertEquals(Map.of(), failures);
            }
        }
        assertEquals(counted(both), counts);
    }
}
