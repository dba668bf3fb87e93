package mainstem;

import static mainstem.Peer.numbers;
import static mainstem.Peer.text;
import static mainstem.Peer.texts;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import com.hivemq.client.mqtt.mqtt5.message.subscribe.Mqtt5RetainHandling;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Version 5: the three qualities of service, retained messages, groups. */
class DeliveryTest extends WithBroker {
    // [MQTT5-4.6.0-5] [MQTT5-4.3.3-10] [MQTT5-3.3.1-12]
    @ParameterizedTest
    @EnumSource
    void aRunOfMessagesArrivesOnceAndInOrder(MqttQos qos) throws Exception {
        String topic = unique("run");
        try (Peer subscriber = new Peer(unique("s")); Peer publisher = new Peer(unique("p"))) {
            subscriber.subscribe(topic, qos);
            List<String> sent = numbers(500);
            publisher.publishAll(topic, sent, qos);
            List<Mqtt5Publish> got = subscriber.receive(sent.size());
            assertEquals(sent, texts(got));
            assertTrue(got.stream().allMatch(message -> message.getQos() == qos && !message.isRetain()));
            publisher.publish(topic, "end", qos);
            assertEquals(List.of(), subscriber.receiveUntil("end"));
        }
    }

    // [MQTT5-3.8.4-8]
    @ParameterizedTest
    @EnumSource
    void theLowerQualityOfServiceWins(MqttQos granted) throws Exception {
        String topic = unique("lower");
        try (Peer peer = new Peer(unique("a"))) {
            peer.subscribe(topic, granted);
            for (MqttQos published : MqttQos.values()) {
                peer.publish(topic, "x", published);
                assertEquals(Math.min(granted.getCode(), published.getCode()), peer.next().getQos().getCode());
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLargeMessageArrivesWhole(MqttQos qos) throws Exception {
        String topic = unique("large");
        byte[] payload = Peer.bytes("0123456789abcdef".repeat(200_000));
        try (Peer peer = new Peer(unique("a"))) {
            peer.subscribe(topic, qos);
            peer.client.publishWith().topic(topic).qos(qos).payload(payload).send();
            assertArrayEquals(payload, peer.next().getPayloadAsBytes());
        }
    }

    // [MQTT5-3.1.3-6] [MQTT5-3.1.3-7] [MQTT5-3.2.2-16]
    @Test
    void anEmptyClientIdentifierIsAnsweredWithAnAssignedOne() {
        try (Peer first = new Peer(""); Peer second = new Peer("")) {
            String assigned = first.connack.getAssignedClientIdentifier().orElseThrow().toString();
            assertFalse(assigned.isEmpty());
            assertNotEquals(assigned, second.connack.getAssignedClientIdentifier().orElseThrow().toString());
        }
    }

    // [MQTT5-3.3.1-5] [MQTT5-3.3.1-6] [MQTT5-3.3.1-9] [MQTT5-3.3.1-12]
    @Test
    void aRetainedMessageIsKeptReplacedAndCleared() throws Exception {
        String topic = unique("retained");
        try (Peer live = new Peer(unique("l"))) {
            live.subscribe(topic, MqttQos.AT_LEAST_ONCE);
            for (String payload : List.of("first", "second")) {
                live.publishRetained(topic, payload);
                assertFalse(live.next().isRetain());
            }
            assertEquals(List.of("second"), retained(topic));
            live.publishRetained(topic, "");
            assertEquals(List.of(), retained(topic));
        }
    }

    /** The retained messages that a new subscriber receives. */
    private static List<String> retained(String topic) throws InterruptedException {
        try (Peer late = new Peer(unique("r"))) {
            late.subscribe(topic, MqttQos.AT_LEAST_ONCE);
            late.publish(topic, "end", MqttQos.AT_LEAST_ONCE);
            List<Mqtt5Publish> got = late.receiveUntil("end");
            assertTrue(got.stream().allMatch(Mqtt5Publish::isRetain));
            return texts(got);
        }
    }

    // [MQTT5-3.3.1-9] [MQTT5-3.3.1-10] [MQTT5-3.3.1-11]
    @ParameterizedTest
    @EnumSource
    void retainHandlingOnANewSubscriptionAndOnTheSameAgain(Mqtt5RetainHandling handling) throws Exception {
        String topic = unique("handling");
        List<Integer> expected = switch (handling) {
            case SEND -> List.of(1, 1);
            case SEND_IF_SUBSCRIPTION_DOES_NOT_EXIST -> List.of(1, 0);
            case DO_NOT_SEND -> List.of(0, 0);
        };
        try (Peer peer = new Peer(unique("a"))) {
            peer.publishRetained(topic, "kept");
            for (int count : expected) {
                peer.client.subscribeWith().topicFilter(topic).qos(MqttQos.AT_LEAST_ONCE).retainHandling(handling)
                        .send();
                peer.publish(topic, "end", MqttQos.AT_LEAST_ONCE);
                assertEquals(count, peer.receiveUntil("end").size());
            }
            peer.publishRetained(topic, "");
        }
    }

    // [MQTT5-3.8.3-3] [MQTT5-3.3.1-13]
    @Test
    void noLocalAndRetainAsPublished() throws Exception {
        String topic = unique("options");
        try (Peer peer = new Peer(unique("a")); Peer other = new Peer(unique("b"))) {
            peer.client.subscribeWith().topicFilter(topic).qos(MqttQos.AT_LEAST_ONCE).noLocal(true)
                    .retainAsPublished(true).send();
            other.subscribe(topic, MqttQos.AT_LEAST_ONCE);
            peer.publish(topic, "own", MqttQos.AT_LEAST_ONCE);
            assertEquals("own", text(other.next()));
            other.publishRetained(topic, "theirs");
            Mqtt5Publish message = peer.next();
            assertEquals("theirs", text(message));
            assertTrue(message.isRetain());
            other.publishRetained(topic, "");
        }
    }

    // MQTT 5, 4.8.2: each message to one member, some to each; after a member has left, the others receive all.
    @ParameterizedTest
    @EnumSource
    void aGroupGetsEveryMessageOnce(MqttQos qos) throws Exception {
        String topic = unique("group");
        String end = unique("end");
        String filter = "$share/group/" + topic;
        List<String> sent = numbers(120);
        List<String> got = new ArrayList<>();
        List<Peer> members = List.of(new Peer(unique("m")), new Peer(unique("m")), new Peer(unique("m")));
        for (Peer member : members) {
            member.subscribe(filter, qos);
            member.subscribe(end, qos);
        }
        try (Peer publisher = new Peer(unique("p"))) {
            for (int round = 0; round < 2; round++) {
                publisher.publishAll(topic, sent.subList(60 * round, 60 * round + 60), qos);
                publisher.publish(end, "end", qos);
                for (Peer member : members) {
                    List<Mqtt5Publish> share = member.receiveUntil("end");
                    boolean hasLeft = round == 1 && member == members.get(0);
                    assertEquals(hasLeft, share.isEmpty(), () -> "share " + share.size());
                    got.addAll(texts(share));
                }
                members.get(0).client.unsubscribeWith().topicFilter(filter).send();
            }
        }
        got.sort(Comparator.comparing(Integer::valueOf));
        assertEquals(sent, got);
        members.forEach(Peer::close);
    }

    // [MQTT5-4.7.2-1]
    @Test
    void systemTopicsAreReadableAndHiddenFromWildcards() throws Exception {
        try (Peer everything = new Peer(unique("e")); Peer system = new Peer(unique("s"))) {
            everything.subscribe("#", MqttQos.AT_MOST_ONCE);
            system.subscribe("$SYS/#", MqttQos.AT_MOST_ONCE);
            Mqtt5Publish message = system.next();
            while (message.isRetain()) {
                message = system.next();
            }
            assertTrue(message.getTopic().toString().startsWith("$SYS/"));
            String end = unique("end");
            system.publish(unique("topic"), end, MqttQos.AT_MOST_ONCE);
            for (Mqtt5Publish seen : everything.receiveUntil(end)) {
                assertFalse(seen.getTopic().toString().startsWith("$"));
            }
        }
    }
}
