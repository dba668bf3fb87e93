package mainstem;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Offsets and groups with the Java consumer. */
class ConsumerTest extends WithKafka {
    @ParameterizedTest
    @ValueSource(classes = {RangeAssignor.class, RoundRobinAssignor.class, StickyAssignor.class,
        CooperativeStickyAssignor.class})
    void noRecordIsMissedOrRepeatedWhileMembersJoinAndLeave(Class<?> assignor) throws Exception {
        String topic = topic(6);
        String group = unique("group");
        List<String> produced = new ArrayList<>();
        List<String> seen = new ArrayList<>();
        List<Member> members = new ArrayList<>();
        try (var producer = producer(Map.of())) {
            for (int size = 1; size <= 3; size++) {
                members.add(new Member(group, topic, Map.of("partition.assignment.strategy", assignor.getName())));
                send(producer, topic, produced);
                int fair = 6 / size;
                until(() -> {
                    Member.pollAll(members);
                    // With cooperative assignment, a member may own partitions while the rebalance continues, but may not
                    // commit in the meantime.
                    return members.stream().allMatch(each -> each.share() == fair)
                            && members.stream().mapToInt(Member::generation).distinct().count() == 1;
                }, () -> "a fair share, there is " + members.stream().map(Member::share).toList());
                send(producer, topic, produced);
            }
            Member leaver = members.remove(0);
            leaver.close();
            seen.addAll(leaver.seen);
            send(producer, topic, produced);
        }
        until(() -> {
            Member.pollAll(members);
            return seen.size() + members.stream().mapToInt(each -> each.seen.size()).sum() >= produced.size();
        }, () -> "all records");
        members.forEach(each -> {
            each.close();
            seen.addAll(each.seen);
        });
        assertEquals(produced.stream().sorted().toList(), seen.stream().sorted().toList());
    }

    private static void send(KafkaProducer<String, String> producer, String topic, List<String> produced) {
        for (int number = 0; number < 120; number++) {
            String value = String.valueOf(produced.size());
            produced.add(value);
            producer.send(new ProducerRecord<>(topic, number % 6, null, value));
        }
        producer.flush();
    }

    @Test
    void theGroupContinuesAtTheCommittedOffset() throws Exception {
        String topic = topic(1);
        String group = unique("group");
        var partition = new TopicPartition(topic, 0);
        produce(topic, numbers(10));
        try (var first = consumer(group)) {
            first.subscribe(List.of(topic));
            take(first, 10);
            assertNull(first.committed(Set.of(partition)).get(partition));
            first.commitSync(Map.of(partition, new OffsetAndMetadata(4, "what I did")));
            assertEquals("what I did", first.committed(Set.of(partition)).get(partition).metadata());
        }
        try (var second = consumer(group)) {
            second.subscribe(List.of(topic));
            assertEquals(numbers(10).subList(4, 10), values(take(second, 6)));
        }
    }

    @Test
    void offsetsAreCommittedAutomatically() throws Exception {
        String topic = topic(1);
        String group = unique("group");
        produce(topic, numbers(5));
        try (var first = consumer(group, Map.of("enable.auto.commit", "true", "auto.commit.interval.ms", "100"))) {
            first.subscribe(List.of(topic));
            take(first, 5);
        }
        produce(topic, List.of("more"));
        try (var second = consumer(group)) {
            second.subscribe(List.of(topic));
            assertEquals(List.of("more"), values(take(second, 1)));
        }
    }

    @Test
    void seekAndOffsetsAtTimesAndEnds() throws Exception {
        String topic = topic(1);
        var partition = new TopicPartition(topic, 0);
        try (var producer = producer(Map.of())) {
            for (int number = 0; number < 10; number++) {
                get(producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_000L + 1000 * number, null, "x")));
            }
        }
        try (var consumer = consumer(unique("group"))) {
            consumer.assign(List.of(partition));
            assertEquals(Map.of(partition, 0L), consumer.beginningOffsets(List.of(partition)));
            assertEquals(Map.of(partition, 10L), consumer.endOffsets(List.of(partition)));
            var found = consumer.offsetsForTimes(Map.of(partition, 1_700_000_003_500L)).get(partition);
            assertEquals(4, found.offset());
            assertEquals(1_700_000_004_000L, found.timestamp());
            assertNull(consumer.offsetsForTimes(Map.of(partition, 1_800_000_000_000L)).get(partition));
            consumer.seek(partition, 7);
            assertEquals(7, take(consumer, 3).get(0).offset());
            consumer.seekToBeginning(List.of(partition));
            assertEquals(0, take(consumer, 10).get(0).offset());
            consumer.seekToEnd(List.of(partition));
            assertEquals(10, consumer.position(partition));
        }
    }

    @Test
    void anOffsetOutOfRangeIsReportedWithoutAResetPolicy() throws Exception {
        String topic = topic(1);
        produce(topic, numbers(3));
        try (var consumer = consumer(unique("group"), Map.of("auto.offset.reset", "none"))) {
            var partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seek(partition, 1000);
            assertThrows(OffsetOutOfRangeException.class, () -> take(consumer, 1));
        }
    }

    /** KIP-345. */
    @Test
    void aReturningStaticMemberKeepsItsPartitions() throws Exception {
        String topic = topic(4);
        String group = unique("group");
        Set<TopicPartition> had;
        try (var stays = new Member(group, topic, Map.of("group.instance.id", "stays"))) {
            try (var leaves = new Member(group, topic, Map.of("group.instance.id", "leaves"))) {
                until(() -> {
                    Member.pollAll(List.of(stays, leaves));
                    return stays.share() == 2 && leaves.share() == 2;
                }, () -> "half each");
                had = new HashSet<>(leaves.consumer.assignment());
            }
            try (var back = new Member(group, topic, Map.of("group.instance.id", "leaves"))) {
                until(() -> {
                    back.poll();
                    return back.share() > 0;
                }, () -> "an assignment without the other member's help");
                assertEquals(had, back.consumer.assignment());
            }
        }
    }

    @Test
    void aSecondStaticMemberWithTheSameIdFencesTheFirst() throws Exception {
        String topic = topic(1);
        String group = unique("group");
        var first = new Member(group, topic, Map.of("group.instance.id", "one"));
        until(() -> {
            first.poll();
            return first.share() == 1;
        }, () -> "an assignment");
        try (var second = new Member(group, topic, Map.of("group.instance.id", "one"))) {
            until(() -> {
                second.poll();
                return second.share() == 1;
            }, () -> "the place of the first");
            assertThrows(FencedInstanceIdException.class, () -> until(() -> {
                first.consumer.poll(Duration.ofMillis(50));
                return false;
            }, () -> "an error"));
        }
        assertThrows(Exception.class, first::close);
    }

    @Test
    void aMemberThatStoppedPollingCannotCommit() throws Exception {
        String topic = topic(1);
        String group = unique("group");
        produce(topic, numbers(2));
        try (var slow = consumer(group, Map.of("max.poll.interval.ms", "1500", "session.timeout.ms", "6000"));
                var heir = consumer(group)) {
            slow.subscribe(List.of(topic));
            take(slow, 2);
            heir.subscribe(List.of(topic));
            assertEquals(numbers(2), values(take(heir, 2)));
            assertThrows(CommitFailedException.class, slow::commitSync);
        }
    }

    @Test
    void aPatternAndNewPartitionsAreFound() throws Exception {
        String prefix = unique("pattern");
        try (var consumer = consumer(unique("group"), Map.of("metadata.max.age.ms", "300"))) {
            consumer.subscribe(Pattern.compile(prefix + ".*"));
            produce(prefix + "-a", List.of("a"));
            assertEquals(List.of("a"), values(take(consumer, 1)));
            consumer.commitSync();
            produce(prefix + "-b", List.of("b"));
            assertEquals(List.of("b"), values(take(consumer, 1)));
            consumer.commitSync();
            get(admin.createPartitions(Map.of(prefix + "-a", NewPartitions.increaseTo(3))).all());
            until(() -> {
                consumer.poll(Duration.ofMillis(50));
                return consumer.assignment().size() == 4;
            }, () -> "the new partitions");
        }
    }

    @Test
    void aRecordWakesALongPoll() throws Exception {
        String topic = topic(1);
        // The fetch wait of the consumer is far longer than the deadline.
        Map<String, String> patient = Map.of("fetch.max.wait.ms", "100000", "request.timeout.ms", "120000",
                "default.api.timeout.ms", "120000");
        try (var consumer = consumer(unique("group"), patient); var producer = producer(Map.of())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            for (String value : numbers(5)) {
                assertFalse(consumer.poll(Duration.ofMillis(20)).iterator().hasNext());
                sendAll(producer, topic, List.of(value));
                assertEquals(List.of(value), values(take(consumer, 1)));
            }
            // Otherwise close would wait for the poll in progress.
            consumer.close(CloseOptions.timeout(Duration.ZERO));
        }
    }
}
