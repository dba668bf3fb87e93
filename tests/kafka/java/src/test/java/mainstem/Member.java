package mainstem;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** A group member driven by the test. It commits its position before it loses a partition. */
final class Member implements ConsumerRebalanceListener, AutoCloseable {
    final KafkaConsumer<String, String> consumer;
    final List<String> seen = new ArrayList<>();

    Member(String group, List<String> topics, Map<String, ?> settings) {
        consumer = WithKafka.consumer(group, settings);
        consumer.subscribe(topics, this);
    }

    Member(String group, String topic, Map<String, ?> settings) {
        this(group, List.of(topic), settings);
    }

    static void pollAll(List<Member> members) {
        members.forEach(Member::poll);
    }

    void poll() {
        consumer.poll(Duration.ofMillis(20)).forEach(each -> seen.add(each.value()));
    }

    int share() {
        return consumer.assignment().size();
    }

    /** Generation of the last rebalance that this member has completed; in the consumer protocol, its epoch. */
    int generation() {
        return consumer.groupMetadata().generationId();
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        consumer.commitSync();
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}

    @Override
    public void close() {
        consumer.close();
    }
}
