package mainstem;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;

/**
 * The broker under test, one for all tests of a class: a running one at MAINSTEM_BROKER, else a process of the binary
 * MAINSTEM_BIN, else of the binary that cargo built.
 */
abstract class WithBroker {
    private static final Pattern READY = Pattern.compile("mqtt listening on (\\S+):(\\d+)$");
    private static final int START_S = 10;
    private static final int DRAIN_S = 15;

    static String host;
    static int port;
    private static Process process;
    private static Path data;

    @BeforeAll
    static void start() throws Exception {
        String address = System.getenv("MAINSTEM_BROKER");
        if (address != null) {
            host = address.substring(0, address.lastIndexOf(':'));
            port = Integer.parseInt(address.substring(address.lastIndexOf(':') + 1));
            return;
        }
        data = Files.createTempDirectory("mainstem-test-");
        process = new ProcessBuilder(binary(), "--listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0", "--http-listen",
                "127.0.0.1:0", "--data", data.toString(), "--set", "mqtt.sys_interval_s=1")
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
        CompletableFuture<Matcher> ready = new CompletableFuture<>();
        Thread reader = new Thread(() -> readStdout(process.inputReader(), ready));
        reader.setDaemon(true);
        reader.start();
        Matcher found = ready.get(START_S, TimeUnit.SECONDS);
        host = found.group(1);
        port = Integer.parseInt(found.group(2));
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
            File built = new File("../../target/" + profile + "/mainstem");
            if (built.exists()) {
                return built.getPath();
            }
        }
        throw new IllegalStateException("no mainstem binary: build one, or name it in MAINSTEM_BIN");
    }

    /** SIGTERM drains the broker, which must then exit with status 0. */
    @AfterAll
    static void stop() throws Exception {
        if (process == null) {
            return;
        }
        process.destroy();
        boolean ended = process.waitFor(DRAIN_S, TimeUnit.SECONDS);
        if (!ended) {
            process.destroyForcibly();
        }
        delete(data);
        assertTrue(ended, "the broker did not stop within " + DRAIN_S + " s of SIGTERM");
        assertEquals(0, process.exitValue(), "exit status after SIGTERM");
        process = null;
    }

    static void delete(Path path) {
        try (var inside = Files.walk(path)) {
            inside.sorted((a, b) -> b.compareTo(a)).map(Path::toFile).forEach(File::delete);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /** A name that no other test uses, for a topic or a client. */
    static String unique(String what) {
        return what + "-" + UUID.randomUUID();
    }
}
