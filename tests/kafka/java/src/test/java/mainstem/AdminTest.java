package mainstem;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.junit.jupiter.api.Test;

/** Administration with the Java client. */
class AdminTest extends WithKafka {
    private static void assertFails(Class<? extends Exception> expected, KafkaFuture<?> future) {
        assertInstanceOf(expected, assertThrows(ExecutionException.class, () -> get(future)).getCause());
    }

    private static TopicDescription described(String topic) throws Exception {
        return get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
    }

    @Test
    void topicsAreCreatedDescribedAndDeleted() throws Exception {
        String name = unique("topic");
        var made = admin.createTopics(List.of(new NewTopic(name, 3, (short) 1)));
        get(made.all());
        assertEquals(3, get(made.numPartitions(name)));
        assertEquals("delete", get(made.config(name)).get("cleanup.policy").value());
        Uuid id = get(made.topicId(name));
        assertNotEquals(Uuid.ZERO_UUID, id);
        assertEquals(id, described(name).topicId());
        assertEquals(3, described(name).partitions().size());
        var byId = get(admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds());
        assertEquals(name, byId.get(id).name());
        assertTrue(get(admin.listTopics().names()).contains(name));
        assertFails(TopicExistsException.class, admin.createTopics(List.of(new NewTopic(name, 3, (short) 1))).all());
        get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
        assertFails(UnknownTopicOrPartitionException.class, admin.deleteTopics(List.of(name)).all());
        assertFails(UnknownTopicOrPartitionException.class, admin.describeTopics(List.of(name)).allTopicNames());
    }

    @Test
    void invalidTopicsAreRejected() throws Exception {
        assertFails(InvalidTopicException.class, admin.createTopics(List.of(new NewTopic("a b", 1, (short) 1))).all());
        String name = unique("topic");
        assertFails(InvalidReplicationFactorException.class,
                admin.createTopics(List.of(new NewTopic(name, 1, (short) 3))).all());
        assertFails(InvalidPartitionsException.class,
                admin.createTopics(List.of(new NewTopic(name, 0, (short) 1))).all());
        assertFails(InvalidConfigurationException.class, admin.createTopics(
                List.of(new NewTopic(name, 1, (short) 1).configs(Map.of("retention.ms", "soon")))).all());
        assertFalse(get(admin.listTopics().names()).contains(name));
    }

    @Test
    void partitionsAreAddedButNeverRemoved() throws Exception {
        String topic = topic(2);
        get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all());
        until(() -> partitions(topic) == 5, () -> "five partitions");
        assertFails(InvalidPartitionsException.class,
                admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all());
        assertFails(UnknownTopicOrPartitionException.class,
                admin.createPartitions(Map.of(unique("none"), NewPartitions.increaseTo(3))).all());
    }

    private static int partitions(String topic) {
        try {
            return described(topic).partitions().size();
        } catch (Exception failure) {
            throw new AssertionError(failure);
        }
    }

    private static Config config(ConfigResource resource) {
        try {
            return get(admin.describeConfigs(List.of(resource)).all()).get(resource);
        } catch (Exception failure) {
            throw new AssertionError(failure);
        }
    }

    private static void alter(ConfigResource resource, String name, String value, OpType type) throws Exception {
        var change = new AlterConfigOp(new ConfigEntry(name, value), type);
        get(admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all());
    }

    @Test
    void configsAreDescribedAndAltered() throws Exception {
        String topic = topic(1, Map.of("retention.ms", "3600000"));
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        assertEquals("3600000", config(resource).get("retention.ms").value());
        assertEquals(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, config(resource).get("retention.ms").source());
        assertEquals(ConfigEntry.ConfigType.LONG, config(resource).get("retention.ms").type());
        assertTrue(config(resource).get("segment.bytes").isDefault());
        alter(resource, "max.message.bytes", "4321", OpType.SET);
        until(() -> config(resource).get("max.message.bytes").value().equals("4321"), () -> "the new limit");
        assertEquals("3600000", config(resource).get("retention.ms").value());
        alter(resource, "cleanup.policy", "compact", OpType.APPEND);
        until(() -> config(resource).get("cleanup.policy").value().equals("delete,compact"), () -> "two policies");
        alter(resource, "cleanup.policy", "compact", OpType.SUBTRACT);
        until(() -> config(resource).get("cleanup.policy").value().equals("delete"), () -> "one policy");
        alter(resource, "retention.ms", "", OpType.DELETE);
        until(() -> config(resource).get("retention.ms").isDefault(), () -> "the default");
        var unknown = new AlterConfigOp(new ConfigEntry("no.such.config", "1"), OpType.SET);
        assertFails(InvalidConfigurationException.class,
                admin.incrementalAlterConfigs(Map.of(resource, List.of(unknown))).all());
        var resources = admin.listConfigResources(Set.of(ConfigResource.Type.TOPIC), new ListConfigResourcesOptions());
        assertTrue(get(resources.all()).contains(resource));
    }

    @Test
    void theClusterAndItsBrokerAreDescribed() throws Exception {
        var cluster = admin.describeCluster();
        assertFalse(get(cluster.clusterId()).isEmpty());
        Node node = get(cluster.controller());
        assertEquals(bootstrap, node.host() + ":" + node.port());
        assertEquals(List.of(node), List.copyOf(get(cluster.nodes())));
        var broker = config(new ConfigResource(ConfigResource.Type.BROKER, node.idString()));
        assertEquals("true", broker.get("auto.create.topics.enable").value());
        assertTrue(Integer.parseInt(broker.get("num.partitions").value()) > 0);
        var features = get(admin.describeFeatures().featureMetadata()).supportedFeatures();
        assertTrue(features.containsKey("transaction.version"), features::toString);
    }

    @Test
    void logDirsReportTheSizeOfTheRecords() throws Exception {
        String topic = topic(1);
        produce(topic, numbers(1000));
        int node = get(admin.describeCluster().controller()).id();
        var dirs = get(admin.describeLogDirs(List.of(node)).allDescriptions()).get(node).values();
        var partition = new TopicPartition(topic, 0);
        assertTrue(dirs.stream().anyMatch(dir -> dir.replicaInfos().containsKey(partition)
                && dir.replicaInfos().get(partition).size() > 1000));
    }

    @Test
    void offsetsAreListed() throws Exception {
        String topic = topic(1);
        var partition = new TopicPartition(topic, 0);
        assertEquals(-1, offset(partition, OffsetSpec.maxTimestamp()));
        try (var producer = producer(Map.of())) {
            for (long timestamp : new long[] {1_700_000_000_000L, 1_700_000_009_000L, 1_700_000_005_000L}) {
                get(producer.send(new ProducerRecord<>(topic, 0, timestamp, null, "x")));
            }
        }
        assertEquals(0, offset(partition, OffsetSpec.earliest()));
        assertEquals(3, offset(partition, OffsetSpec.latest()));
        // KIP-734: the highest timestamp is not that of the last record.
        assertEquals(1, offset(partition, OffsetSpec.maxTimestamp()));
        assertEquals(1, offset(partition, OffsetSpec.forTimestamp(1_700_000_000_001L)));
        assertEquals(-1, offset(partition, OffsetSpec.forTimestamp(1_800_000_000_000L)));
        // KIP-405: the earliest local offset. All records are local.
        assertEquals(0, offset(partition, OffsetSpec.earliestLocal()));
    }

    private static long offset(TopicPartition partition, OffsetSpec spec) throws Exception {
        return get(admin.listOffsets(Map.of(partition, spec)).partitionResult(partition)).offset();
    }

    @Test
    void recordsAreDeletedUpToAnOffset() throws Exception {
        String topic = topic(1);
        var partition = new TopicPartition(topic, 0);
        produce(topic, numbers(10));
        var deleted = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(6)));
        assertEquals(6, get(deleted.lowWatermarks().get(partition)).lowWatermark());
        assertEquals(6, offset(partition, OffsetSpec.earliest()));
        assertEquals(numbers(10).subList(6, 10), values(read(topic, 4, Map.of())));
        get(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(-1))).all());
        assertEquals(10, offset(partition, OffsetSpec.earliest()));
        assertFails(OffsetOutOfRangeException.class,
                admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(11))).all());
    }

    @Test
    void groupsAndTheirOffsetsAreAdministered() throws Exception {
        String topic = topic(2);
        String group = unique("group");
        var partition = new TopicPartition(topic, 0);
        produce(topic, numbers(10));
        try (var consumer = consumer(group, Map.of("client.id", "someone"))) {
            consumer.subscribe(List.of(topic));
            take(consumer, 10);
            consumer.commitSync();
            var described = get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
            assertEquals(GroupState.STABLE, described.groupState());
            assertEquals("range", described.partitionAssignor());
            var member = described.members().iterator().next();
            assertEquals("someone", member.clientId());
            assertEquals(2, member.assignment().topicPartitions().size());
            assertEquals(bootstrap, described.coordinator().host() + ":" + described.coordinator().port());
            assertFails(GroupNotEmptyException.class, admin.deleteConsumerGroups(List.of(group)).all());
            assertFails(GroupSubscribedToTopicException.class,
                    admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all());
            consumer.poll(Duration.ZERO);
        }
        assertEquals(GroupState.EMPTY, get(admin.describeConsumerGroups(List.of(group)).all()).get(group).groupState());
        assertTrue(get(admin.listGroups().all()).stream().anyMatch(each -> each.groupId().equals(group)));
        assertEquals(10, committed(group).get(partition).offset());
        get(admin.alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(3, "moved"))).all());
        assertEquals(3, committed(group).get(partition).offset());
        assertEquals("moved", committed(group).get(partition).metadata());
        get(admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all());
        assertFalse(committed(group).containsKey(partition));
        get(admin.deleteConsumerGroups(List.of(group)).all());
        assertFalse(get(admin.listGroups().all()).stream().anyMatch(each -> each.groupId().equals(group)));
        assertFails(GroupIdNotFoundException.class, admin.deleteConsumerGroups(List.of(group)).all());
    }

    private static Map<TopicPartition, OffsetAndMetadata> committed(String group) throws Exception {
        return get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
    }
}
