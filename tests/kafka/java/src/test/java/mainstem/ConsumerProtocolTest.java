package mainstem;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.InvalidRegularExpression;
import org.apache.kafka.common.errors.UnreleasedInstanceIdException;
import org.apache.kafka.common.errors.UnsupportedAssignorException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The consumer protocol of KIP-848, in which the broker assigns partitions, with the Java client. */
class ConsumerProtocolTest extends WithKafka {
    private static Map<String, Object> with(String... settings) {
        Map<String, Object> all = new HashMap<>(Map.of("group.protocol", "consumer"));
        for (int at = 0; at < settings.length; at += 2) {
            all.put(settings[at], settings[at + 1]);
        }
        return all;
    }

    private static KafkaConsumer<String, String> newConsumer(String group, String... settings) {
        return consumer(group, with(settings));
    }

    private static Member member(String group, List<String> topics, String... settings) {
        return new Member(group, topics, with(settings));
    }

    private static Member member(String group, String topic, String... settings) {
        return member(group, List.of(topic), settings);
    }

    private static ConsumerGroupDescription described(String group) {
        try {
            return get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
        } catch (Exception failure) {
            throw new AssertionError(failure);
        }
    }

    private static void assertFails(Class<? extends Exception> expected, KafkaFuture<?> future) {
        assertInstanceOf(expected, assertThrows(ExecutionException.class, () -> get(future)).getCause());
    }

    /** Collects the partitions that a member loses because the broker no longer knows it. */
    private static ConsumerRebalanceListener collectLost(Set<TopicPartition> lost) {
        return new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}

            @Override
            public void onPartitionsLost(Collection<TopicPartition> partitions) {
                lost.addAll(partitions);
            }
        };
    }

    /** Polls until the consumer fails. */
    private static void pollUntilFailure(KafkaConsumer<?, ?> consumer) {
        until(() -> {
            consumer.poll(Duration.ofMillis(50));
            return false;
        }, () -> "an error");
    }

    /** Polls until the members own these numbers of partitions, and have all completed the same rebalance. */
    private static void untilShares(List<Member> members, List<Integer> shares) {
        until(() -> {
            Member.pollAll(members);
            return members.stream().map(Member::share).sorted().toList().equals(shares)
                    && members.stream().mapToInt(Member::generation).distinct().count() == 1;
        }, () -> shares + ", there is " + members.stream().map(Member::share).toList());
    }

    private static void untilAssigned(KafkaConsumer<?, ?> consumer, Set<TopicPartition> expected) {
        until(() -> {
            consumer.poll(Duration.ofMillis(20));
            return consumer.assignment().equals(expected);
        }, () -> expected + ", there is " + consumer.assignment());
    }

    private static void send(KafkaProducer<String, String> producer, String topic, List<String> produced) {
        for (int number = 0; number < 120; number++) {
            String value = String.valueOf(produced.size());
            produced.add(value);
            producer.send(new ProducerRecord<>(topic, number % 6, null, value));
        }
        producer.flush();
    }

    @ParameterizedTest
    @ValueSource(strings = {"uniform", "range"})
    void noRecordIsMissedOrRepeatedWhileMembersJoinAndLeave(String assignor) throws Exception {
        String topic = topic(6);
        String group = unique("group");
        List<String> produced = new ArrayList<>();
        List<String> seen = new ArrayList<>();
        List<Member> members = new ArrayList<>();
        try (var producer = producer(Map.of())) {
            for (int size = 1; size <= 3; size++) {
                members.add(member(group, topic, "group.remote.assignor", assignor));
                send(producer, topic, produced);
                untilShares(members, List.of(List.of(6), List.of(3, 3), List.of(2, 2, 2)).get(size - 1));
                send(producer, topic, produced);
            }
            assertEquals(assignor, described(group).partitionAssignor());
            Member leaver = members.remove(0);
            leaver.close();
            seen.addAll(leaver.seen);
            send(producer, topic, produced);
            untilShares(members, List.of(3, 3));
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

    /** Range divides each of two topics of three partitions, uniform divides all six partitions. */
    @ParameterizedTest
    @CsvSource({"range, 2, 4", "uniform, 3, 3"})
    void theAssignorDividesThePartitions(String assignor, int fewer, int more) throws Exception {
        List<String> topics = List.of(topic(3), topic(3));
        String group = unique("group");
        String[] settings = {"group.remote.assignor", assignor};
        try (var first = member(group, topics, settings); var second = member(group, topics, settings)) {
            untilShares(List.of(first, second), List.of(fewer, more));
            Set<TopicPartition> owned = new HashSet<>(first.consumer.assignment());
            owned.addAll(second.consumer.assignment());
            assertEquals(6, owned.size());
        }
    }

    @Test
    void anUnknownAssignorIsRefused() throws Exception {
        try (var consumer = newConsumer(unique("group"), "group.remote.assignor", "fair")) {
            consumer.subscribe(List.of(topic(1)));
            assertThrows(UnsupportedAssignorException.class, () -> pollUntilFailure(consumer));
        }
    }

    /** A member that keeps its partition reads on while another one joins. */
    @Test
    void aMemberKeepsItsPartitionsWhileAnotherJoins() throws Exception {
        String topic = topic(2);
        String group = unique("group");
        try (var first = member(group, topic)) {
            untilShares(List.of(first), List.of(2));
            try (var second = member(group, topic)) {
                Set<TopicPartition> always = new HashSet<>(first.consumer.assignment());
                until(() -> {
                    Member.pollAll(List.of(first, second));
                    always.retainAll(first.consumer.assignment());
                    return first.share() == 1 && second.share() == 1;
                }, () -> "half each");
                assertEquals(first.consumer.assignment(), always);
            }
        }
    }

    @Test
    void theGroupContinuesAtTheCommittedOffset() throws Exception {
        String topic = topic(1);
        String group = unique("group");
        var partition = new TopicPartition(topic, 0);
        produce(topic, numbers(10));
        try (var first = newConsumer(group)) {
            first.subscribe(List.of(topic));
            take(first, 10);
            first.commitSync(Map.of(partition, new OffsetAndMetadata(2, "what I did")));
            assertEquals("what I did", first.committed(Set.of(partition)).get(partition).metadata());
            var committed = new CompletableFuture<Map<TopicPartition, OffsetAndMetadata>>();
            first.commitAsync(Map.of(partition, new OffsetAndMetadata(4)), (offsets, failure) -> {
                if (failure == null) {
                    committed.complete(offsets);
                } else {
                    committed.completeExceptionally(failure);
                }
            });
            until(() -> {
                first.poll(Duration.ofMillis(20));
                return committed.isDone();
            }, () -> "the commit");
            assertEquals(4, committed.get().get(partition).offset());
        }
        try (var second = newConsumer(group, "enable.auto.commit", "true", "auto.commit.interval.ms", "100")) {
            second.subscribe(List.of(topic));
            assertEquals(numbers(10).subList(4, 10), values(take(second, 6)));
        }
        produce(topic, List.of("more"));
        try (var third = newConsumer(group)) {
            third.subscribe(List.of(topic));
            assertEquals(List.of("more"), values(take(third, 1)));
        }
    }

    @Test
    void aMemberThatStoppedPollingCannotCommit() throws Exception {
        String topic = topic(1);
        String group = unique("group");
        produce(topic, numbers(2));
        try (var slow = newConsumer(group, "max.poll.interval.ms", "1500"); var heir = newConsumer(group)) {
            slow.subscribe(List.of(topic));
            take(slow, 2);
            heir.subscribe(List.of(topic));
            assertEquals(numbers(2), values(take(heir, 2)));
            var offsets = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(2));
            assertThrows(CommitFailedException.class, () -> slow.commitSync(offsets));
        }
    }

    /** The broker matches whole names, also those of topics that are created later. */
    @Test
    void aPatternSelectsTopicsThatExistAndNewOnes() throws Exception {
        String prefix = unique("pattern");
        produce(prefix + "-a", List.of("a"));
        try (var consumer = newConsumer(unique("group"))) {
            consumer.subscribe(new SubscriptionPattern(prefix + "-(a|b)"));
            assertEquals(List.of("a"), values(take(consumer, 1)));
            produce(prefix + "-ab", List.of("ab"));
            produce("x" + prefix + "-a", List.of("xa"));
            produce(prefix + "-b", List.of("b"));
            assertEquals(List.of("b"), values(take(consumer, 1)));
            assertEquals(Set.of(new TopicPartition(prefix + "-a", 0), new TopicPartition(prefix + "-b", 0)),
                    consumer.assignment());
            consumer.unsubscribe();
            consumer.subscribe(new SubscriptionPattern(Pattern.quote(prefix) + "-a+"));
            untilAssigned(consumer, Set.of(new TopicPartition(prefix + "-a", 0)));
            consumer.unsubscribe();
            consumer.subscribe(List.of(prefix + "-ab"));
            assertEquals(List.of("ab"), values(take(consumer, 1)));
        }
    }

    @Test
    void aPatternThatIsNoRegularExpressionIsRefused() {
        try (var consumer = newConsumer(unique("group"))) {
            consumer.subscribe(new SubscriptionPattern("(a"));
            assertThrows(InvalidRegularExpression.class, () -> pollUntilFailure(consumer));
        }
    }

    /** Such as subscriptions by `java.util.regex.Pattern`, which the client matches. */
    @Test
    void aSubscriptionIsChanged() throws Exception {
        String first = topic(2);
        String second = topic(1);
        try (var consumer = newConsumer(unique("group"))) {
            consumer.subscribe(List.of(first));
            untilAssigned(consumer, Set.of(new TopicPartition(first, 0), new TopicPartition(first, 1)));
            consumer.subscribe(List.of(second));
            untilAssigned(consumer, Set.of(new TopicPartition(second, 0)));
            consumer.unsubscribe();
            consumer.subscribe(Pattern.compile(first + "|" + unique("none")));
            untilAssigned(consumer, Set.of(new TopicPartition(first, 0), new TopicPartition(first, 1)));
        }
    }

    @Test
    void newPartitionsAndDeletedTopicsAreNoticed() throws Exception {
        String stays = topic(1);
        String goes = topic(2);
        try (var consumer = newConsumer(unique("group"), "metadata.max.age.ms", "300",
                "allow.auto.create.topics", "false")) {
            consumer.subscribe(List.of(stays, goes));
            until(() -> {
                consumer.poll(Duration.ofMillis(20));
                return consumer.assignment().size() == 3;
            }, () -> "all partitions");
            get(admin.createPartitions(Map.of(stays, NewPartitions.increaseTo(2))).all());
            get(admin.deleteTopics(List.of(goes)).all());
            untilAssigned(consumer, Set.of(new TopicPartition(stays, 0), new TopicPartition(stays, 1)));
            try (var producer = producer(Map.of())) {
                get(producer.send(new ProducerRecord<>(stays, 1, null, "in the new partition")));
            }
            assertEquals(List.of("in the new partition"), values(take(consumer, 1)));
        }
    }

    @Test
    void aReturningStaticMemberKeepsItsPartitions() throws Exception {
        String topic = topic(4);
        String group = unique("group");
        Set<TopicPartition> had;
        int epoch;
        try (var stays = member(group, topic, "group.instance.id", "stays")) {
            try (var leaves = member(group, topic, "group.instance.id", "leaves")) {
                untilShares(List.of(stays, leaves), List.of(2, 2));
                had = new HashSet<>(leaves.consumer.assignment());
                epoch = leaves.generation();
            }
            var back = member(group, topic, "group.instance.id", "leaves");
            until(() -> {
                back.poll();
                return back.share() > 0;
            }, () -> "an assignment without the other member's help");
            assertEquals(had, back.consumer.assignment());
            assertEquals(epoch, back.generation());
            assertEquals(Set.of(Optional.of("stays"), Optional.of("leaves")), new HashSet<>(described(group).members()
                    .stream().map(MemberDescription::groupInstanceId).toList()));
            // KIP-1092: it leaves for good.
            back.consumer.close(CloseOptions.groupMembershipOperation(GroupMembershipOperation.LEAVE_GROUP));
            untilShares(List.of(stays), List.of(4));
        }
    }

    /** Unlike in the classic protocol, the second one fails. */
    @Test
    void aStaticMemberIsRefusedWhileItsInstanceIdIsInUse() throws Exception {
        String topic = topic(1);
        String group = unique("group");
        try (var first = member(group, topic, "group.instance.id", "one")) {
            untilShares(List.of(first), List.of(1));
            try (var second = newConsumer(group, "group.instance.id", "one")) {
                second.subscribe(List.of(topic));
                assertThrows(UnreleasedInstanceIdException.class, () -> pollUntilFailure(second));
            }
            produce(topic, List.of("a"));
            assertEquals(List.of("a"), values(take(first.consumer, 1)));
        }
    }

    @Test
    void aTransactionalCopyIsExactDespiteAborts() throws Exception {
        String source = topic(1);
        String sink = topic(1);
        String group = unique("group");
        var partition = new TopicPartition(source, 0);
        produce(source, numbers(150));
        for (int life = 0; life < 2; life++) {
            try (var consumer = newConsumer(group, "isolation.level", "read_committed", "max.poll.records", "50");
                    var producer = producer(Map.of("transactional.id", unique(group)))) {
                producer.initTransactions();
                consumer.subscribe(List.of(source));
                for (int number = 0; number < 2; number++) {
                    List<ConsumerRecord<String, String>> records = take(consumer, 50);
                    producer.beginTransaction();
                    records.forEach(each -> producer.send(new ProducerRecord<>(sink, each.value())));
                    long next = records.get(records.size() - 1).offset() + 1;
                    producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(next)),
                            consumer.groupMetadata());
                    // The second transaction of the first consumer is aborted.
                    if (life == 0 && number == 1) {
                        producer.abortTransaction();
                    } else {
                        producer.commitTransaction();
                    }
                }
                long expected = life == 0 ? 50 : 150;
                assertEquals(expected, consumer.committed(Set.of(partition)).get(partition).offset());
            }
        }
        assertEquals(numbers(150), values(read(sink, 150, Map.of("isolation.level", "read_committed"))));
    }

    @Test
    void aTransactionOfAnotherEpochOrMemberIsRefused() throws Exception {
        String topic = topic(1);
        String group = unique("group");
        var offsets = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1));
        try (var member = member(group, topic); var producer = producer(Map.of("transactional.id", unique(group)))) {
            untilShares(List.of(member), List.of(1));
            ConsumerGroupMetadata right = member.consumer.groupMetadata();
            producer.initTransactions();
            for (ConsumerGroupMetadata wrong : List.of(
                    new ConsumerGroupMetadata(group, right.generationId() + 1, right.memberId(), Optional.empty()),
                    new ConsumerGroupMetadata(group, right.generationId(), "someone else", Optional.empty()))) {
                producer.beginTransaction();
                assertThrows(CommitFailedException.class, () -> producer.sendOffsetsToTransaction(offsets, wrong),
                        wrong::toString);
                producer.abortTransaction();
            }
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(offsets, right);
            producer.commitTransaction();
            assertEquals(offsets, member.consumer.committed(offsets.keySet()));
        }
    }

    /** KIP-1251: a member may commit what it keeps with the epoch of its previous assignment, and nothing else. */
    @Test
    void aTransactionOfAnOlderEpochMayCommitWhatTheMemberKeeps() throws Exception {
        String topic = topic(2);
        String group = unique("group");
        try (var first = member(group, topic); var producer = producer(Map.of("transactional.id", unique(group)))) {
            untilShares(List.of(first), List.of(2));
            ConsumerGroupMetadata before = first.consumer.groupMetadata();
            producer.initTransactions();
            try (var second = member(group, topic)) {
                untilShares(List.of(first, second), List.of(1, 1));
                var gone = Map.of(second.consumer.assignment().iterator().next(), new OffsetAndMetadata(1));
                producer.beginTransaction();
                assertThrows(CommitFailedException.class, () -> producer.sendOffsetsToTransaction(gone, before));
                producer.abortTransaction();
                var kept = Map.of(first.consumer.assignment().iterator().next(), new OffsetAndMetadata(1));
                producer.beginTransaction();
                producer.sendOffsetsToTransaction(kept, before);
                producer.commitTransaction();
                assertEquals(kept, first.consumer.committed(kept.keySet()));
            }
        }
    }

    @Test
    void aGroupIsDescribedListedAndDeleted() throws Exception {
        String topic = topic(2);
        String group = unique("group");
        var partitions = Set.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
        produce(topic, numbers(10));
        try (var consumer = newConsumer(group, "client.id", "someone", "client.rack", "here")) {
            consumer.subscribe(List.of(topic));
            take(consumer, 10);
            consumer.commitSync();
            until(() -> described(group).groupState() == GroupState.STABLE, () -> "a stable group");
            ConsumerGroupDescription described = described(group);
            assertEquals(GroupType.CONSUMER, described.type());
            assertFalse(described.isSimpleConsumerGroup());
            assertEquals("uniform", described.partitionAssignor());
            assertEquals(bootstrap, described.coordinator().host() + ":" + described.coordinator().port());
            MemberDescription member = described.members().iterator().next();
            assertEquals("someone", member.clientId());
            assertEquals(Optional.of("here"), member.rackId());
            assertEquals("/127.0.0.1", member.host());
            assertEquals(consumer.groupMetadata().memberId(), member.consumerId());
            assertEquals(partitions, member.assignment().topicPartitions());
            assertEquals(partitions, member.targetAssignment().orElseThrow().topicPartitions());
            var epoch = Optional.of(consumer.groupMetadata().generationId());
            assertEquals(epoch, member.memberEpoch());
            assertEquals(epoch, described.groupEpoch());
            assertEquals(epoch, described.targetAssignmentEpoch());
            assertEquals(Optional.of(true), member.upgraded());

            assertTrue(isListed(group, new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER))));
            assertTrue(isListed(group, new ListGroupsOptions().inGroupStates(Set.of(GroupState.STABLE))));
            assertTrue(isListed(group, ListGroupsOptions.forConsumerGroups()));
            assertFalse(isListed(group, new ListGroupsOptions().withTypes(Set.of(GroupType.CLASSIC))));
            assertFailsWhileInUse(group, topic);
        }
        assertEquals(GroupState.EMPTY, described(group).groupState());
        assertEquals(GroupType.CONSUMER, described(group).type());
        assertEquals(partitions, get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).keySet());
        get(admin.deleteConsumerGroupOffsets(group, partitions).all());
        get(admin.deleteConsumerGroups(List.of(group)).all());
        assertFalse(isListed(group, new ListGroupsOptions()));
        assertFails(GroupIdNotFoundException.class, admin.describeConsumerGroups(List.of(group)).all());
        assertFails(GroupIdNotFoundException.class, admin.deleteConsumerGroups(List.of(group)).all());
    }

    private static boolean isListed(String group, ListGroupsOptions options) throws Exception {
        return get(admin.listGroups(options).all()).stream().anyMatch(each -> each.groupId().equals(group)
                && each.type().equals(Optional.of(GroupType.CONSUMER)));
    }

    private static void assertFailsWhileInUse(String group, String topic) {
        var partition = new TopicPartition(topic, 0);
        assertFails(GroupNotEmptyException.class, admin.deleteConsumerGroups(List.of(group)).all());
        assertFails(GroupSubscribedToTopicException.class,
                admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all());
        assertFails(Exception.class,
                admin.alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(3))).all());
    }

    @Test
    void anAdministratorRemovesMembers() throws Exception {
        String topic = topic(2);
        String group = unique("group");
        var partitions = Set.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
        var fixed = new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("one")));
        for (var options : List.of(fixed, new RemoveMembersFromConsumerGroupOptions())) {
            var lost = new HashSet<TopicPartition>();
            try (var consumer = newConsumer(group, "group.instance.id", "one")) {
                consumer.subscribe(List.of(topic), collectLost(lost));
                untilAssigned(consumer, partitions);
                // The poll that still looks up start offsets would fail.
                partitions.forEach(consumer::position);
                get(admin.removeMembersFromConsumerGroup(group, options).all());
                until(() -> {
                    consumer.poll(Duration.ofMillis(20));
                    return lost.size() == 2 && consumer.assignment().size() == 2;
                }, () -> "it joins again");
            }
        }
    }

    @Test
    void anEmptyGroupKeepsItsOffsetsWhenItChangesTheProtocol() throws Exception {
        String topic = topic(1);
        String group = unique("group");
        produce(topic, numbers(3));
        Map<String, ?> classic = Map.of("max.poll.records", "1");
        List<Map<String, ?>> protocols = List.of(classic, with("max.poll.records", "1"), classic);
        for (int number = 0; number < 3; number++) {
            try (var consumer = consumer(group, protocols.get(number))) {
                consumer.subscribe(List.of(topic));
                assertEquals(List.of(String.valueOf(number)), values(take(consumer, 1)), protocols.toString());
                consumer.commitSync();
            }
        }
    }

    /** Members of one protocol replace those of the other one by one, first upward, then downward. */
    @Test
    void noRecordIsMissedOrRepeatedWhileAGroupChangesTheProtocol() throws Exception {
        String topic = topic(6);
        String group = unique("group");
        Map<String, ?> classic = Map.of("partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
        List<String> produced = new ArrayList<>();
        List<String> seen = new ArrayList<>();
        List<Member> members = new ArrayList<>();
        try (var producer = producer(Map.of())) {
            for (Map<String, ?> protocol : List.of(classic, with(), classic)) {
                members.add(new Member(group, topic, protocol));
                send(producer, topic, produced);
                if (members.size() == 2) {
                    untilShares(members, List.of(3, 3));
                    assertEquals(Set.of(Optional.of(true), Optional.of(false)), new HashSet<>(described(group).members()
                            .stream().map(MemberDescription::upgraded).toList()));
                    Member replaced = members.remove(0);
                    replaced.close();
                    seen.addAll(replaced.seen);
                }
                untilShares(members, List.of(6));
                assertEquals(protocol == classic ? GroupType.CLASSIC : GroupType.CONSUMER, described(group).type());
                send(producer, topic, produced);
            }
        }
        Member last = members.get(0);
        until(() -> {
            last.poll();
            return seen.size() + last.seen.size() >= produced.size();
        }, () -> "all records");
        last.close();
        seen.addAll(last.seen);
        assertEquals(produced.stream().sorted().toList(), seen.stream().sorted().toList());
    }
}
