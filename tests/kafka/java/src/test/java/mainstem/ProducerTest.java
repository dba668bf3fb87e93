package mainstem;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.record.TimestampType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Records of the Java producer are stored byte for byte, in order, in the right partition. */
class ProducerTest extends WithKafka {
    @Test
    void allOfTwentyThousandRecordsAreRead() throws Exception {
        String topic = topic(1);
        try (var producer = producer(Map.of("linger.ms", 5))) {
            List<RecordMetadata> sent = sendAll(producer, topic, numbers(20_000));
            assertEquals(19_999, sent.get(19_999).offset());
        }
        assertEquals(numbers(20_000), values(read(topic, 20_000, Map.of())));
    }

    @ParameterizedTest
    @ValueSource(strings = {"0", "1", "all"})
    void acks(String acks) throws Exception {
        String topic = topic(1);
        try (var producer = producer(Map.of("acks", acks, "enable.idempotence", acks.equals("all")))) {
            List<RecordMetadata> sent = sendAll(producer, topic, numbers(100));
            assertEquals(acks.equals("0") ? -1 : 99, sent.get(99).offset());
        }
        assertEquals(numbers(100), values(read(topic, 100, Map.of())));
    }

    @ParameterizedTest
    @ValueSource(strings = {"none", "gzip", "snappy", "lz4", "zstd"})
    void everyCompressionAndLargeRecords(String codec) throws Exception {
        String topic = topic(1);
        String large = "0123456789abcdef".repeat(60_000);
        try (var producer = producer(Map.of("compression.type", codec, "linger.ms", 20))) {
            sendAll(producer, topic, numbers(500));
            sendAll(producer, topic, List.of(large));
        }
        List<String> got = values(read(topic, 501, Map.of()));
        assertEquals(numbers(500), got.subList(0, 500));
        assertEquals(large, got.get(500));
    }

    @Test
    void keysHeadersNullsAndTimestamps() throws Exception {
        String topic = topic(1);
        try (var producer = producer(Map.of())) {
            var first = new ProducerRecord<>(topic, 0, 1_600_000_000_123L, "key", "value");
            first.headers().add("a", bytes("1")).add("b", null).add("a", new byte[0]);
            get(producer.send(first));
            get(producer.send(new ProducerRecord<>(topic, "tombstone", null)));
            get(producer.send(new ProducerRecord<>(topic, "", "")));
        }
        List<ConsumerRecord<String, String>> got = read(topic, 3, Map.of());
        ConsumerRecord<String, String> first = got.get(0);
        assertEquals(1_600_000_000_123L, first.timestamp());
        assertEquals(TimestampType.CREATE_TIME, first.timestampType());
        var headers = first.headers().toArray();
        assertEquals(List.of("a", "b", "a"), java.util.Arrays.stream(headers).map(each -> each.key()).toList());
        assertArrayEquals(bytes("1"), headers[0].value());
        assertNull(headers[1].value());
        assertArrayEquals(new byte[0], headers[2].value());
        assertEquals("tombstone", got.get(1).key());
        assertNull(got.get(1).value());
        assertEquals("", got.get(2).key());
    }

    @Test
    void theKeySelectsThePartition() throws Exception {
        String topic = topic(8);
        try (var producer = producer(Map.of())) {
            for (String key : numbers(40)) {
                int first = get(producer.send(new ProducerRecord<>(topic, key, "a"))).partition();
                assertEquals(first, get(producer.send(new ProducerRecord<>(topic, key, "b"))).partition());
            }
            assertEquals(8, producer.partitionsFor(topic).size());
        }
        long used = read(topic, 80, Map.of()).stream().map(ConsumerRecord::partition).distinct().count();
        assertTrue(used > 4, () -> used + " partitions have records");
    }

    @Test
    void theBrokersTimeReplacesTheProducers() throws Exception {
        String topic = topic(1, Map.of("message.timestamp.type", "LogAppendTime"));
        try (var producer = producer(Map.of())) {
            get(producer.send(new ProducerRecord<>(topic, 0, 1_000L, null, "x")));
        }
        ConsumerRecord<String, String> got = read(topic, 1, Map.of()).get(0);
        assertEquals(TimestampType.LOG_APPEND_TIME, got.timestampType());
        assertTrue(got.timestamp() > 1_600_000_000_000L);
    }

    @Test
    void aTimestampBeyondTheTopicsLimitIsRejected() throws Exception {
        String topic = topic(1, Map.of("message.timestamp.before.max.ms", "60000"));
        try (var producer = producer(Map.of())) {
            var failure = assertThrows(ExecutionException.class,
                    () -> get(producer.send(new ProducerRecord<>(topic, 0, 1_000L, null, "x"))));
            assertInstanceOf(InvalidTimestampException.class, failure.getCause());
        }
    }

    @Test
    void aRecordAboveTheTopicsLimitIsRejected() throws Exception {
        String topic = topic(1, Map.of("max.message.bytes", "10000"));
        try (var producer = producer(Map.of())) {
            var failure = assertThrows(ExecutionException.class,
                    () -> get(producer.send(new ProducerRecord<>(topic, "x".repeat(20_000)))));
            assertInstanceOf(RecordTooLargeException.class, failure.getCause());
            get(producer.send(new ProducerRecord<>(topic, "small")));
        }
        assertEquals(List.of("small"), values(read(topic, 1, Map.of())));
    }

    @Test
    void producingCreatesATopic() throws Exception {
        String topic = unique("auto");
        produce(topic, List.of("first"));
        assertEquals(List.of("first"), values(read(topic, 1, Map.of())));
    }
}
