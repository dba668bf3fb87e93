package mainstem;

import static mainstem.Tools.end;
import static mainstem.Tools.run;
import static mainstem.Tools.runWith;
import static mainstem.Tools.with;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.tools.BrokerApiVersionsCommand;
import org.apache.kafka.tools.ClientCompatibilityTest;
import org.apache.kafka.tools.ConsoleProducer;
import org.apache.kafka.tools.ConsumerPerformance;
import org.apache.kafka.tools.DeleteRecordsCommand;
import org.apache.kafka.tools.EndToEndLatency;
import org.apache.kafka.tools.FeatureCommand;
import org.apache.kafka.tools.GetOffsetShell;
import org.apache.kafka.tools.GroupsCommand;
import org.apache.kafka.tools.LogDirsCommand;
import org.apache.kafka.tools.ProducerPerformance;
import org.apache.kafka.tools.TopicCommand;
import org.apache.kafka.tools.TransactionalMessageCopier;
import org.apache.kafka.tools.TransactionsCommand;
import org.apache.kafka.tools.VerifiableConsumer;
import org.apache.kafka.tools.VerifiableProducer;
import org.apache.kafka.tools.consumer.ConsoleConsumer;
import org.apache.kafka.tools.consumer.group.ConsumerGroupCommand;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Kafka's own command-line tools, run in this process: their output and their exit status. */
class ToolsTest extends WithKafka {
    @TempDir
    Path files;

    /** Runs a tool as a process of its own, because it prints its report when it is terminated. */
    private static String fork(Class<?> tool, String... arguments) throws Exception {
        var command = new ArrayList<>(List.of(ProcessHandle.current().info().command().orElseThrow(), "-cp",
                System.getProperty("java.class.path"), tool.getName()));
        command.addAll(List.of(arguments));
        Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
        String text = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(0, process.waitFor(), () -> String.join(" ", arguments) + "\n" + end(text));
        return text;
    }

    @Test
    void performanceOfProducerAndConsumer() throws Exception {
        String topic = topic(3);
        String produced = run(ProducerPerformance::main, "--bootstrap-server", bootstrap, "--topic", topic,
                "--num-records", "50000", "--record-size", "100", "--throughput", "-1");
        assertTrue(produced.contains("50000 records sent"), produced);
        String consumed = run(ConsumerPerformance::main, "--bootstrap-server", bootstrap, "--topic", topic,
                "--num-records", "50000", "--hide-header", "--timeout", "20000");
        assertTrue(Long.parseLong(consumed.split(",")[4].strip()) >= 50_000, consumed);
    }

    @Test
    void performanceOfTransactions() throws Exception {
        String topic = topic(3);
        String produced = run(ProducerPerformance::main, "--bootstrap-server", bootstrap, "--topic", topic,
                "--num-records", "20000", "--record-size", "100", "--throughput", "-1", "--transactional-id",
                unique("transaction"), "--transaction-duration-ms", "50");
        assertTrue(produced.contains("20000 records sent"), produced);
        assertEquals(20_000, read(topic, 20_000, Map.of("isolation.level", "read_committed")).size());
    }

    @Test
    void endToEndLatency() throws Exception {
        String written = run(EndToEndLatency::main, "--bootstrap-server", bootstrap, "--topic", topic(1),
                "--num-records", "500", "--producer-acks", "all", "--record-size", "100");
        assertTrue(written.contains("Percentiles"), written);
    }

    @Test
    void theVerifiableConsumerReadsTheVerifiableProducersRecords() throws Exception {
        String topic = topic(3);
        String produced = fork(VerifiableProducer.class, "--bootstrap-server", bootstrap, "--topic", topic,
                "--max-messages", "2000", "--throughput", "-1");
        assertTrue(produced.contains("\"sent\":2000,\"acked\":2000"), () -> end(produced));
        String group = unique("group");
        String consumed = fork(VerifiableConsumer.class, "--bootstrap-server", bootstrap, "--topic", topic,
                "--group-id", group, "--max-messages", "2000", "--reset-policy", "earliest");
        assertTrue(consumed.contains("offsets_committed"), () -> end(consumed));
        long seen = consumed.lines().filter(line -> line.contains("\"name\":\"records_consumed\""))
                .mapToLong(line -> Long.parseLong(line.replaceAll(".*?\"count\":(\\d+).*", "$1"))).sum();
        assertEquals(2000, seen);
    }

    @Test
    void theCopierCopiesExactlyOnceAmongItsOwnAborts() throws Exception {
        String source = topic(1);
        String sink = topic(1);
        produce(source, numbers(1000));
        run(TransactionalMessageCopier::main, "--broker-list", bootstrap, "--input-topic", source, "--input-partition",
                "0", "--output-topic", sink, "--max-messages", "1000", "--consumer-group", unique("group"),
                "--transaction-size", "100", "--transactional-id", unique("transaction"), "--enable-random-aborts",
                "--use-group-metadata", "--group-mode");
        assertEquals(numbers(1000), values(read(sink, 1000, Map.of("isolation.level", "read_committed"))));
    }

    @Test
    void theCompatibilityTestFindsAllFeatures() throws Exception {
        String topic = topic(1);
        // The tool creates a topic of this name.
        get(admin.listTopics().names()).stream().filter("newtopic"::equals)
                .forEach(name -> admin.deleteTopics(List.of(name)));
        // The tool checks whether ACLs can be described, not whether there are any.
        boolean hasRules = run(BrokerApiVersionsCommand::main, "--bootstrap-server", bootstrap)
                .contains("DescribeAcls(29): 1");
        run(ClientCompatibilityTest::main, "--bootstrap-server", bootstrap, "--topic", topic,
                "--offsets-for-times-supported", "true", "--cluster-id-supported", "true",
                "--expect-record-too-large-exception", "false", "--num-cluster-nodes", "1",
                "--create-topics-supported", "true", "--describe-acls-supported", String.valueOf(hasRules),
                "--describe-configs-supported", "true", "--idempotent-producer-supported", "true");
    }

    @Test
    void theConsoleProducesAndConsumes() throws Exception {
        String topic = topic(1);
        runWith("a:1\nb:2\n", ConsoleProducer::main, "--bootstrap-server", bootstrap, "--topic", topic,
                "--reader-property", "parse.key=true", "--reader-property", "key.separator=:");
        String got = run(ConsoleConsumer::main, "--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning",
                "--max-messages", "2", "--formatter-property", "print.key=true", "--formatter-property",
                "key.separator==");
        assertEquals("a=1\nb=2\n", got);
    }

    @Test
    void topicsAndConfigs() throws Exception {
        String topic = unique("topic");
        String[] server = {"--bootstrap-server", bootstrap};
        run(TopicCommand::main, with(server, "--create", "--topic", topic, "--partitions", "2", "--config",
                "retention.ms=3600000"));
        assertTrue(run(TopicCommand::main, with(server, "--list")).lines().anyMatch(topic::equals));
        String described = run(TopicCommand::main, with(server, "--describe", "--topic", topic));
        assertTrue(described.contains("PartitionCount: 2") && described.contains("retention.ms=3600000"), described);
        run(TopicCommand::main, with(server, "--alter", "--topic", topic, "--partitions", "4"));
        String[] entity = with(server, "--entity-type", "topics", "--entity-name", topic);
        run(kafka.admin.ConfigCommand::main, with(entity, "--alter", "--add-config", "max.message.bytes=4321",
                "--delete-config", "retention.ms"));
        until(() -> configs(entity).contains("max.message.bytes=4321"), () -> "the new limit");
        assertFalse(configs(entity).contains("retention.ms="));
        described = run(TopicCommand::main, with(server, "--describe", "--topic", topic));
        assertTrue(described.contains("PartitionCount: 4"), described);
        run(TopicCommand::main, with(server, "--delete", "--topic", topic));
        assertFalse(run(TopicCommand::main, with(server, "--list")).lines().anyMatch(topic::equals));
    }

    private static String configs(String[] entity) {
        try {
            return run(kafka.admin.ConfigCommand::main, with(entity, "--describe"));
        } catch (Exception failure) {
            throw new AssertionError(failure);
        }
    }

    @Test
    void quotas() throws Exception {
        String[] server = {"--bootstrap-server", bootstrap};
        String client = unique("client");
        String[][] entities = {
            with(server, "--entity-type", "clients", "--entity-name", client),
            with(server, "--entity-type", "users", "--entity-name", client),
            with(server, "--entity-type", "users", "--entity-name", client, "--entity-type", "clients",
                    "--entity-default"),
        };
        for (String[] entity : entities) {
            run(kafka.admin.ConfigCommand::main, with(entity, "--alter", "--add-config",
                    "producer_byte_rate=1048576,consumer_byte_rate=2097152,request_percentage=12.5"));
            String described = configs(entity);
            assertTrue(described.contains("producer_byte_rate=1048576"), described);
            assertTrue(described.contains("request_percentage=12.5"), described);
            run(kafka.admin.ConfigCommand::main, with(entity, "--alter", "--delete-config",
                    "producer_byte_rate,request_percentage"));
            described = configs(entity);
            assertTrue(described.contains("consumer_byte_rate=2097152"), described);
            assertFalse(described.contains("producer_byte_rate"), described);
            run(kafka.admin.ConfigCommand::main, with(entity, "--alter", "--delete-config", "consumer_byte_rate"));
            assertFalse(configs(entity).contains("consumer_byte_rate"), "all are deleted");
        }
        String[] address = with(server, "--entity-type", "ips", "--entity-name", "192.0.2.1");
        run(kafka.admin.ConfigCommand::main, with(address, "--alter", "--add-config", "connection_creation_rate=50"));
        assertTrue(configs(address).contains("connection_creation_rate=50"), configs(address));
        run(kafka.admin.ConfigCommand::main, with(address, "--alter", "--delete-config", "connection_creation_rate"));
    }

    @Test
    void groups() throws Exception {
        String topic = topic(2);
        String group = unique("group");
        String[] server = {"--bootstrap-server", bootstrap};
        produce(topic, numbers(10));
        try (var consumer = consumer(group)) {
            consumer.subscribe(List.of(topic));
            take(consumer, 10);
            consumer.commitSync();
            String described = run(ConsumerGroupCommand::main, with(server, "--describe", "--group", group));
            assertTrue(described.lines().anyMatch(line -> line.matches(".*" + topic + "\\s+0\\s+10\\s+10\\s+0\\s.*")),
                    described);
            assertTrue(run(ConsumerGroupCommand::main, with(server, "--describe", "--group", group, "--members",
                    "--verbose")).contains(topic + ":0,1"));
            assertTrue(run(ConsumerGroupCommand::main, with(server, "--describe", "--group", group, "--state"))
                    .contains("Stable"));
        }
        assertTrue(run(ConsumerGroupCommand::main, with(server, "--list", "--state")).lines()
                .anyMatch(line -> line.startsWith(group) && line.contains("Empty")));
        assertTrue(run(GroupsCommand::main, with(server, "--list")).contains(group));
        String reset = run(ConsumerGroupCommand::main, with(server, "--reset-offsets", "--group", group, "--topic",
                topic, "--shift-by", "-4", "--execute"));
        assertTrue(reset.lines().anyMatch(line -> line.matches(".*" + topic + "\\s+0\\s+6.*")), reset);
        run(ConsumerGroupCommand::main, with(server, "--delete-offsets", "--group", group, "--topic", topic));
        run(ConsumerGroupCommand::main, with(server, "--delete", "--group", group));
        assertFalse(run(ConsumerGroupCommand::main, with(server, "--list")).contains(group));
    }

    /** KIP-848. */
    @Test
    void groupsOfTheConsumerProtocol() throws Exception {
        String topic = topic(2);
        String group = unique("group");
        String[] server = {"--bootstrap-server", bootstrap};
        String[] described = with(server, "--describe", "--group", group);
        produce(topic, numbers(10));
        String got = run(ConsoleConsumer::main, with(server, "--topic", topic, "--group", group, "--from-beginning",
                "--max-messages", "4", "--command-property", "group.protocol=consumer"));
        assertEquals("0\n1\n2\n3\n", got);
        try (var consumer = consumer(group, Map.of("group.protocol", "consumer"))) {
            consumer.subscribe(List.of(topic));
            take(consumer, 6);
            consumer.commitSync();
            int epoch = consumer.groupMetadata().generationId();
            assertLine(run(ConsumerGroupCommand::main, with(server, "--list", "--type")), group + "\\s+Consumer\\s*");
            assertLine(run(ConsumerGroupCommand::main, described),
                    group + "\\s+" + topic + "\\s+0\\s+10\\s+10\\s+0\\s.*");
            assertLine(run(ConsumerGroupCommand::main, with(described, "--state", "--verbose")),
                    group + "\\s+" + bootstrap + ".*\\suniform\\s+Stable\\s+" + epoch + "\\s+" + epoch + "\\s+1\\s*");
            assertLine(run(ConsumerGroupCommand::main, with(described, "--members", "--verbose")),
                    group + "\\s.*\\s" + epoch + "\\s+" + topic + ":0,1\\s+" + epoch + "\\s+" + topic + ":0,1\\s*");
            assertLine(run(GroupsCommand::main, with(server, "--list", "--group-type", "consumer")),
                    group + "\\s+Consumer\\s+consumer\\s*");
        }
        assertLine(run(ConsumerGroupCommand::main, with(described, "--state")), group + ".*\\sEmpty\\s.*");
        String[] config = with(server, "--entity-type", "groups", "--entity-name", group);
        String setting = "consumer.session.timeout.ms=50000";
        run(kafka.admin.ConfigCommand::main, with(config, "--alter", "--add-config", setting));
        assertLine(run(kafka.admin.ConfigCommand::main, with(config, "--describe")), "\\s*" + setting + " .*");
        run(ConsumerGroupCommand::main, with(server, "--delete", "--group", group));
        assertFalse(run(ConsumerGroupCommand::main, with(server, "--list")).contains(group));
    }

    private static void assertLine(String output, String pattern) {
        assertTrue(output.lines().anyMatch(line -> line.matches(pattern)), () -> pattern + " is not in\n" + output);
    }

    @Test
    void offsetsAndRecords() throws Exception {
        String topic = topic(2);
        produce(topic, numbers(10));
        String[] server = {"--bootstrap-server", bootstrap};
        assertEquals(topic + ":0:10\n" + topic + ":1:0\n",
                run(GetOffsetShell::main, with(server, "--topic", topic)));
        Path json = Files.writeString(files.resolve("delete.json"),
                "{\"partitions\":[{\"topic\":\"" + topic + "\",\"partition\":0,\"offset\":4}],\"version\":1}");
        run(DeleteRecordsCommand::main, with(server, "--offset-json-file", json.toString()));
        assertEquals(topic + ":0:4\n" + topic + ":1:0\n",
                run(GetOffsetShell::main, with(server, "--topic", topic, "--time", "earliest")));
    }

    @Test
    void theBrokerItself() throws Exception {
        String[] server = {"--bootstrap-server", bootstrap};
        String versions = run(BrokerApiVersionsCommand::main, server);
        for (String api : new String[] {"Produce(0): 0 to 1", "Fetch(1): 4 to 1", "ApiVersions(18): 0 to 4",
            "JoinGroup(11): 0 to 9", "InitProducerId(22): 0 to "}) {
            assertTrue(versions.contains(api), () -> api + " is not in\n" + versions);
        }
        assertTrue(run(FeatureCommand::main, with(server, "describe")).contains("transaction.version"));
        assertTrue(run(LogDirsCommand::main, with(server, "--describe")).contains("\"logDirs\""));
        run(TransactionsCommand::main, with(server, "list"));
    }
}
