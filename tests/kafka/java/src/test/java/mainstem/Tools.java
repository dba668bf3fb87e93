package mainstem;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;
import org.apache.kafka.common.utils.Exit;

/** Runs Kafka's own command-line tools in this process. */
final class Tools {
    private Tools() {}

    interface Main {
        void run(String[] arguments) throws Exception;
    }

    /** Thrown when a tool requests the exit of the process. */
    private static final class Exited extends Error {
        private static final long serialVersionUID = 1;
    }

    /** What a tool has printed, to both streams, and its exit status. */
    record Result(String stdout, String stderr, int status) {}

    /** Runs a tool, which must not fail, and returns its output. */
    static String run(Main main, String... arguments) throws Exception {
        return runWith("", main, arguments);
    }

    static String runWith(String stdin, Main main, String... arguments) throws Exception {
        Result result = execute(stdin, main, arguments);
        assertEquals(0, result.status(),
                () -> String.join(" ", arguments) + "\n" + end(result.stdout()) + end(result.stderr()));
        return result.stdout();
    }

    /** Runs a tool, which must fail, and returns all that it printed. */
    static String fails(Main main, String... arguments) throws Exception {
        Result result = execute("", main, arguments);
        assertEquals(1, result.status(), () -> String.join(" ", arguments) + "\n" + end(result.stdout()));
        return result.stdout() + result.stderr();
    }

    private static Result execute(String stdin, Main main, String... arguments) throws Exception {
        PrintStream stdout = System.out;
        PrintStream stderr = System.err;
        InputStream input = System.in;
        var written = new ByteArrayOutputStream();
        var errors = new ByteArrayOutputStream();
        List<Integer> statuses = new ArrayList<>();
        Exit.setExitProcedure((code, message) -> {
            statuses.add(code);
            throw new Exited();
        });
        List<Runnable> hooks = new ArrayList<>();
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        System.setOut(new PrintStream(written, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        System.setIn(new ByteArrayInputStream(stdin.getBytes(StandardCharsets.UTF_8)));
        try {
            main.run(arguments);
        } catch (Exited end) {
            // The exit status is already recorded.
        } finally {
            hooks.forEach(Runnable::run);
            System.setOut(stdout);
            System.setErr(stderr);
            System.setIn(input);
            Exit.resetExitProcedure();
            Exit.resetShutdownHookAdder();
        }
        // Some tools catch this exception as well and then report a failure: the first status counts.
        int status = statuses.isEmpty() ? 0 : statuses.get(0);
        return new Result(written.toString(StandardCharsets.UTF_8), errors.toString(StandardCharsets.UTF_8), status);
    }

    static String end(String text) {
        return text.substring(Math.max(0, text.length() - 1000));
    }

    static String[] with(String[] first, String... more) {
        return Stream.of(first, more).flatMap(Arrays::stream).toArray(String[]::new);
    }
}
