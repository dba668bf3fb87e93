package mainstem;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.junit.jupiter.api.Test;

/** Exactly-once semantics of the Java clients: since KIP-890, each transaction has a new epoch. */
class TransactionTest extends WithKafka {
    private static final Map<String, String> COMMITTED = Map.of("isolation.level", "read_committed");

    private static KafkaProducer<String, String> transactional(String name) {
        var producer = producer(Map.of("transactional.id", name));
        producer.initTransactions();
        return producer;
    }

    @Test
    void committedRecordsAreReadAndAbortedOnesAreNot() throws Exception {
        String topic = topic(1);
        List<String> expected = new ArrayList<>();
        try (var producer = transactional(unique("transaction"))) {
            for (int number = 0; number < 10; number++) {
                int mine = number;
                List<String> values = numbers(50).stream().map(value -> mine + "-" + value).toList();
                producer.beginTransaction();
                sendAll(producer, topic, values);
                if (number % 3 == 1) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                    expected.addAll(values);
                }
            }
        }
        produce(topic, List.of("end"));
        expected.add("end");
        assertEquals(expected, values(read(topic, expected.size(), COMMITTED)));
        assertEquals(501, read(topic, 501, Map.of()).size());
    }

    @Test
    void anOpenTransactionBlocksReadersOfCommittedRecords() throws Exception {
        String topic = topic(1);
        var partition = new TopicPartition(topic, 0);
        try (var producer = transactional(unique("transaction")); var consumer = consumer(unique("group"), COMMITTED)) {
            consumer.assign(List.of(partition));
            producer.beginTransaction();
            sendAll(producer, topic, List.of("open"));
            produce(topic, List.of("behind"));
            assertEquals(List.of("open", "behind"), values(read(topic, 2, Map.of())));
            assertEquals(0, consumer.endOffsets(List.of(partition)).get(partition));
            assertTrue(consumer.poll(Duration.ofMillis(1000)).isEmpty());
            producer.commitTransaction();
            assertEquals(List.of("open", "behind"), values(take(consumer, 2)));
        }
    }

    @Test
    void aSuccessorFencesItsPredecessor() throws Exception {
        String topic = topic(1);
        String name = unique("transaction");
        try (var first = transactional(name)) {
            first.beginTransaction();
            sendAll(first, topic, List.of("left"));
            try (var second = transactional(name)) {
                second.beginTransaction();
                sendAll(second, topic, List.of("done"));
                second.commitTransaction();
            }
            KafkaException fenced = assertThrows(KafkaException.class, first::commitTransaction);
            assertTrue(fenced instanceof ProducerFencedException || fenced instanceof InvalidProducerEpochException,
                    fenced::toString);
        }
        assertEquals(List.of("done"), values(read(topic, 1, COMMITTED)));
    }

    @Test
    void aTransactionalCopyIsExactDespiteAborts() throws Exception {
        String source = topic(1);
        String sink = topic(1);
        String group = unique("group");
        var partition = new TopicPartition(source, 0);
        produce(source, numbers(300));
        for (int life = 0; life < 3; life++) {
            try (var consumer = consumer(group, Map.of("isolation.level", "read_committed", "max.poll.records", 50));
                    var producer = transactional(unique(group))) {
                consumer.subscribe(List.of(source));
                for (int number = 0; number < (life < 2 ? 2 : 4); number++) {
                    List<ConsumerRecord<String, String>> records = take(consumer, 50);
                    producer.beginTransaction();
                    records.forEach(each -> producer.send(new ProducerRecord<>(sink, each.value())));
                    long next = records.get(records.size() - 1).offset() + 1;
                    producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(next)),
                            consumer.groupMetadata());
                    // The second transaction of each run but the last is aborted.
                    if (life < 2 && number == 1) {
                        producer.abortTransaction();
                    } else {
                        producer.commitTransaction();
                    }
                }
                long expected = life < 2 ? 50 * (life + 1) : 300;
                assertEquals(expected, consumer.committed(Set.of(partition)).get(partition).offset());
            }
        }
        assertEquals(numbers(300), values(read(sink, 300, COMMITTED)));
    }

    @Test
    void transactionsAndProducersAreDescribed() throws Exception {
        String topic = topic(1);
        String name = unique("transaction");
        var partition = new TopicPartition(topic, 0);
        try (var producer = transactional(name)) {
            producer.beginTransaction();
            sendAll(producer, topic, List.of("open"));
            var described = get(admin.describeTransactions(List.of(name)).description(name));
            assertEquals(TransactionState.ONGOING, described.state());
            assertEquals(Set.of(partition), described.topicPartitions());
            var options = new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING));
            assertTrue(get(admin.listTransactions(options).all()).stream()
                    .anyMatch(each -> each.transactionalId().equals(name)));
            var states = get(admin.describeProducers(List.of(partition)).partitionResult(partition)).activeProducers();
            assertEquals(1, states.size());
            assertEquals(described.producerId(), states.get(0).producerId());
            assertEquals(0, states.get(0).currentTransactionStartOffset().getAsLong());
            producer.commitTransaction();
            until(() -> state(name) == TransactionState.COMPLETE_COMMIT, () -> "the end, it is " + state(name));
        }
    }

    private static TransactionState state(String name) {
        try {
            return get(admin.describeTransactions(List.of(name)).description(name)).state();
        } catch (Exception failure) {
            throw new AssertionError(failure);
        }
    }

    @Test
    void anAdministratorFencesAndAborts() throws Exception {
        String topic = topic(1);
        String name = unique("transaction");
        try (var producer = transactional(name)) {
            producer.beginTransaction();
            sendAll(producer, topic, List.of("open"));
            get(admin.fenceProducers(List.of(name)).all());
            var fenced = assertThrows(KafkaException.class, producer::commitTransaction);
            assertInstanceOf(KafkaException.class, fenced);
        }
        produce(topic, List.of("end"));
        assertEquals(List.of("end"), values(read(topic, 1, COMMITTED)));
    }
}
