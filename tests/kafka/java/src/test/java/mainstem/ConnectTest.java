package mainstem;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.connect.cli.ConnectStandalone;
import org.apache.kafka.connect.storage.StringConverter;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Kafka Connect in standalone mode copies a file to a topic, and the topic to a file. */
class ConnectTest extends WithKafka {
    @TempDir
    Path files;

    private Path properties(String name, Map<String, String> settings) throws IOException {
        List<String> lines = settings.entrySet().stream().map(each -> each.getKey() + "=" + each.getValue()).toList();
        return Files.write(files.resolve(name), lines);
    }

    @Test
    void aFileIsCopiedThroughATopic() throws Exception {
        String topic = unique("connect");
        Path input = Files.write(files.resolve("input"), numbers(500));
        Path output = files.resolve("output");
        Path worker = properties("worker", Map.of("bootstrap.servers", bootstrap, "key.converter",
                StringConverter.class.getName(), "value.converter", StringConverter.class.getName(),
                "offset.storage.file.filename", files.resolve("offsets").toString(), "offset.flush.interval.ms", "500",
                "listeners", "HTTP://127.0.0.1:0", "plugin.discovery", "service_load"));
        Path source = properties("source", Map.of("name", "source", "connector.class", "FileStreamSource", "tasks.max",
                "1", "file", input.toString(), "topic", topic));
        Path sink = properties("sink", Map.of("name", unique("sink"), "connector.class", "FileStreamSink", "tasks.max",
                "1", "file", output.toString(), "topics", topic, "consumer.override.auto.offset.reset", "earliest"));
        Exit.setExitProcedure((code, message) -> {
            throw new IllegalStateException("Connect ends with " + code + ": " + message);
        });
        var thread = new Thread(
                () -> ConnectStandalone.main(new String[] {worker.toString(), source.toString(), sink.toString()}));
        thread.setDaemon(true);
        thread.start();
        until(() -> lines(output).equals(numbers(500)), () -> "the lines of the file");
        Files.write(input, List.of("one more"), StandardOpenOption.APPEND);
        until(() -> lines(output).size() == 501, () -> "one more line");
        assertEquals("one more", lines(output).get(500));
        thread.interrupt();
        thread.join(TimeUnit.SECONDS.toMillis(DEADLINE_S));
    }

    private static List<String> lines(Path file) {
        try {
            return Files.exists(file) ? Files.readAllLines(file) : List.of();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}
