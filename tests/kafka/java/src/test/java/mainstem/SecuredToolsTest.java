package mainstem;

import static mainstem.Tools.fails;
import static mainstem.Tools.run;
import static mainstem.Tools.with;
import static mainstem.WithKafka.get;
import static mainstem.WithKafka.unique;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import kafka.admin.ConfigCommand;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.GroupAuthorizationException;
import org.apache.kafka.common.errors.SaslAuthenticationException;
import org.apache.kafka.common.errors.TopicAuthorizationException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.tools.AclCommand;
import org.apache.kafka.tools.TopicCommand;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/**
 * kafka-acls.sh and kafka-configs.sh against a broker with users: `admin` may do everything, no rule allows `alice`
 * anything.
 */
class SecuredToolsTest {
    private static Process broker;
    private static Path data;
    private static String bootstrap;

    @BeforeAll
    static void start() throws Exception {
        assumeTrue(System.getenv("MAINSTEM_KAFKA") == null, "a running broker has other users");
        data = Files.createTempDirectory("mainstem-test-");
        for (String user : List.of("admin", "alice")) {
            Process adding = new ProcessBuilder(WithKafka.binary(), "user", "add", user, "--data", data.toString())
                    .redirectErrorStream(true).start();
            try (var stdin = adding.getOutputStream()) {
                stdin.write((user + "-password").getBytes(StandardCharsets.UTF_8));
            }
            String printed = new String(adding.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            assertEquals(0, adding.waitFor(), printed);
        }
        broker = WithKafka.launch("--data", data.toString(), "--set", "security.super_users=[\"admin\"]", "--set",
                "kafka.sasl=[\"SCRAM-SHA-256\", \"SCRAM-SHA-512\"]", "--set",
                "kafka.failed_authentication_delay_ms=50");
        bootstrap = WithKafka.listening(broker);
        // As soon as there is a rule, what no rule allows is denied.
        acls("admin", "--add", "--allow-principal", "User:nobody", "--operation", "Read", "--topic", "nothing");
    }

    @AfterAll
    static void stop() throws Exception {
        if (broker != null) {
            WithKafka.terminate(broker, data);
        }
    }

    private static Map<String, Object> logIn(String user, String password, String mechanism) {
        return new HashMap<>(Map.of("bootstrap.servers", bootstrap, "security.protocol", "SASL_PLAINTEXT",
                "sasl.mechanism", mechanism, "sasl.jaas.config",
                "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"" + user
                        + "\" password=\"" + password + "\";"));
    }

    private static Map<String, Object> logIn(String user) {
        return logIn(user, user + "-password", "SCRAM-SHA-512");
    }

    /** The flags by which a tool logs in as a user. */
    private static String[] as(String user) throws Exception {
        Path file = data.resolve(user + ".properties");
        var properties = new Properties();
        properties.putAll(logIn(user));
        try (var out = Files.newBufferedWriter(file)) {
            properties.store(out, null);
        }
        return new String[] {"--bootstrap-server", bootstrap, "--command-config", file.toString()};
    }

    private static String acls(String user, String... arguments) throws Exception {
        return run(AclCommand::main, with(as(user), arguments));
    }

    private static String configs(String user, String... arguments) throws Exception {
        return run(ConfigCommand::main, with(as(user), arguments));
    }

    private static String topic() throws Exception {
        String name = unique("topic");
        try (Admin admin = Admin.create(logIn("admin"))) {
            get(admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all());
        }
        return name;
    }

    private static void produce(String user, String topic) throws Exception {
        try (var producer = new KafkaProducer<>(logIn(user), new StringSerializer(), new StringSerializer())) {
            get(producer.send(new ProducerRecord<>(topic, "value")));
        }
    }

    /** Consumes one record as a member of a group. */
    private static String consume(String user, String topic, String group) {
        Map<String, Object> settings = logIn(user);
        settings.putAll(Map.of("group.id", group, "auto.offset.reset", "earliest"));
        try (var consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            List<String> got = new ArrayList<>();
            WithKafka.until(() -> {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> got.add(record.value()));
                return !got.isEmpty();
            }, () -> "a record");
            return got.get(0);
        }
    }

    @Test
    void aclsAreAddedListedAndRemoved() throws Exception {
        String topic = unique("topic");
        String group = unique("group");
        acls("admin", "--add", "--allow-principal", "User:carol", "--allow-host", "192.0.2.7", "--operation", "Read",
                "--operation", "Describe", "--topic", topic);
        acls("admin", "--add", "--deny-principal", "User:dave", "--operation", "All", "--topic", topic,
                "--resource-pattern-type", "prefixed");
        acls("admin", "--add", "--allow-principal", "User:carol", "--operation", "Read", "--group", group);
        acls("admin", "--add", "--allow-principal", "User:*", "--operation", "Describe", "--cluster");
        String listed = acls("admin", "--list", "--topic", topic);
        for (String part : List.of("resourceType=TOPIC, name=" + topic + ", patternType=LITERAL",
                "principal=User:carol, host=192.0.2.7, operation=READ, permissionType=ALLOW",
                "principal=User:carol, host=192.0.2.7, operation=DESCRIBE, permissionType=ALLOW")) {
            assertTrue(listed.contains(part), () -> part + " is not in\n" + listed);
        }
        assertFalse(listed.contains("PREFIXED"), listed);
        String prefixed = acls("admin", "--list", "--topic", topic, "--resource-pattern-type", "prefixed");
        assertTrue(prefixed.contains("patternType=PREFIXED") && prefixed.contains(
                "principal=User:dave, host=*, operation=ALL, permissionType=DENY"), prefixed);
        String matching = acls("admin", "--list", "--topic", topic + "-1", "--resource-pattern-type", "match");
        assertTrue(matching.contains("User:dave") && !matching.contains("User:carol"), matching);
        String ofCarol = acls("admin", "--list", "--principal", "User:carol");
        assertTrue(ofCarol.contains(group) && ofCarol.contains(topic) && !ofCarol.contains("User:dave"), ofCarol);
        assertTrue(acls("admin", "--list", "--cluster").contains("name=kafka-cluster"));

        acls("admin", "--remove", "--force", "--allow-principal", "User:carol", "--allow-host", "192.0.2.7",
                "--operation", "Read", "--topic", topic);
        String left = acls("admin", "--list", "--topic", topic);
        assertTrue(left.contains("operation=DESCRIBE") && !left.contains("operation=READ"), left);
        for (String[] object : new String[][] {{"--topic", topic, "--resource-pattern-type", "any"},
            {"--group", group}, {"--cluster"}}) {
            acls("admin", with(new String[] {"--remove", "--force"}, object));
            assertFalse(acls("admin", with(new String[] {"--list"}, object)).contains("principal="));
        }
    }

    @Test
    void theConveniencesForProducersAndConsumersAllowJustThat() throws Exception {
        String topic = topic();
        String group = unique("group");
        ExecutionException refused = assertThrows(ExecutionException.class, () -> produce("alice", topic));
        assertTrue(refused.getCause() instanceof TopicAuthorizationException, refused.toString());
        acls("admin", "--add", "--allow-principal", "User:alice", "--producer", "--topic", topic);
        produce("alice", topic);
        assertThrows(GroupAuthorizationException.class, () -> consume("alice", topic, group));
        acls("admin", "--remove", "--force", "--allow-principal", "User:alice", "--producer", "--topic", topic);
        acls("admin", "--add", "--allow-principal", "User:alice", "--consumer", "--topic", topic, "--group", group);
        assertEquals("value", consume("alice", topic, group));
        assertThrows(GroupAuthorizationException.class, () -> consume("alice", topic, group + "-2"));
        assertThrows(ExecutionException.class, () -> produce("alice", topic));
        acls("admin", "--add", "--deny-principal", "User:alice", "--operation", "Read", "--topic", topic);
        assertThrows(TopicAuthorizationException.class, () -> consume("alice", topic, group));
        acls("admin", "--remove", "--force", "--topic", topic);
        acls("admin", "--remove", "--force", "--group", group);
    }

    @Test
    void whoMayNotAdministerIsToldSo() throws Exception {
        String[] alice = as("alice");
        for (String[] arguments : new String[][] {{"--list"},
            {"--add", "--allow-principal", "User:alice", "--operation", "All", "--topic", "*"},
            {"--remove", "--force", "--topic", "nothing"}}) {
            String printed = fails(AclCommand::main, with(alice, arguments));
            assertTrue(printed.contains("authorization failed") || printed.contains("ClusterAuthorization"), printed);
        }
        for (String[] arguments : new String[][] {
            {"--alter", "--add-config", "SCRAM-SHA-256=[password=mine]", "--entity-type", "users", "--entity-name",
                "admin"},
            {"--alter", "--delete-config", "SCRAM-SHA-512", "--entity-type", "users", "--entity-name", "admin"},
            {"--alter", "--add-config", "retention.ms=1", "--entity-type", "topics", "--entity-name", topic()}}) {
            String printed = fails(ConfigCommand::main, with(alice, arguments));
            assertTrue(printed.contains("uthorization"), printed);
        }
        assertTrue(acls("admin", "--list").contains("User:nobody"), "nothing was removed");
        assertEquals("", run(TopicCommand::main, with(alice, "--list")).strip(), "no topic is shown");
    }

    private static void describeCluster(Map<String, Object> settings) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            admin.describeCluster().nodes().get(WithKafka.DEADLINE_S, TimeUnit.SECONDS);
        }
    }

    @Test
    void credentialsOfScramAreSetDescribedAndDeleted() throws Exception {
        String user = unique("user");
        String[] entity = {"--entity-type", "users", "--entity-name", user};
        configs("admin", with(entity, "--alter", "--add-config",
                "SCRAM-SHA-256=[iterations=8192,password=one],SCRAM-SHA-512=[password=two]"));
        String described = configs("admin", with(entity, "--describe"));
        assertTrue(described.contains("SCRAM-SHA-256=iterations=8192"), described);
        assertTrue(described.contains("SCRAM-SHA-512=iterations=4096"), described);
        assertFalse(described.contains("one") || described.contains("two"), described);
        describeCluster(logIn(user, "one", "SCRAM-SHA-256"));
        describeCluster(logIn(user, "two", "SCRAM-SHA-512"));
        ExecutionException wrong = assertThrows(ExecutionException.class,
                () -> describeCluster(logIn(user, "two", "SCRAM-SHA-256")));
        assertTrue(wrong.getCause() instanceof SaslAuthenticationException, wrong.toString());

        configs("admin", with(entity, "--alter", "--delete-config", "SCRAM-SHA-256"));
        described = configs("admin", with(entity, "--describe"));
        assertTrue(described.contains("SCRAM-SHA-512") && !described.contains("SCRAM-SHA-256"), described);
        assertThrows(ExecutionException.class, () -> describeCluster(logIn(user, "one", "SCRAM-SHA-256")));
        describeCluster(logIn(user, "two", "SCRAM-SHA-512"));
    }
}
