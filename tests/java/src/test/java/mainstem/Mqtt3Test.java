package mainstem;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.exceptions.MqttClientStateException;
import com.hivemq.client.mqtt.lifecycle.MqttClientDisconnectedContext;
import com.hivemq.client.mqtt.mqtt3.Mqtt3BlockingClient;
import com.hivemq.client.mqtt.mqtt3.Mqtt3Client;
import com.hivemq.client.mqtt.mqtt3.message.publish.Mqtt3Publish;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Version 3.1.1. */
class Mqtt3Test extends WithBroker {
    /** A version 3.1.1 client for tests: every wait has a deadline. */
    private static final class Older implements AutoCloseable {
        final Mqtt3BlockingClient client;
        final BlockingQueue<MqttClientDisconnectedContext> disconnected = new LinkedBlockingQueue<>();
        private final Mqtt3BlockingClient.Mqtt3Publishes publishes;

        Older(String identifier, int port) {
            client = Mqtt3Client.builder().identifier(identifier).serverHost(host).serverPort(port)
                    .addDisconnectedListener(disconnected::add).buildBlocking();
            publishes = client.publishes(MqttGlobalPublishFilter.ALL);
        }

        static Older connected(String what) {
            Older older = new Older(unique(what), port);
            assertFalse(older.connect(true));
            return older;
        }

        /** Connects, and returns whether the server had a session. */
        boolean connect(boolean clean) {
            return client.connectWith().cleanSession(clean).send().isSessionPresent();
        }

        void subscribe(String filter, MqttQos qos) {
            int granted = client.subscribeWith().topicFilter(filter).qos(qos).send().getReturnCodes().get(0).getCode();
            assertEquals(qos.getCode(), granted);
        }

        void publish(String topic, String payload, MqttQos qos) {
            client.publishWith().topic(topic).qos(qos).payload(Peer.bytes(payload)).send();
        }

        void publishRetained(String topic, String payload) {
            client.publishWith().topic(topic).qos(MqttQos.AT_LEAST_ONCE).payload(Peer.bytes(payload)).retain(true)
                    .send();
        }

        /** Publishes with up to 20 handshakes in progress. */
        void publishAll(String topic, List<String> payloads, MqttQos qos) throws Exception {
            for (int from = 0; from < payloads.size(); from += 20) {
                List<CompletableFuture<Mqtt3Publish>> underWay = new ArrayList<>();
                for (String payload : payloads.subList(from, Math.min(from + 20, payloads.size()))) {
                    underWay.add(client.toAsync().publishWith().topic(topic).qos(qos).payload(Peer.bytes(payload)).send());
                }
                CompletableFuture.allOf(underWay.toArray(CompletableFuture[]::new))
                        .get(Peer.DEADLINE_S, TimeUnit.SECONDS);
            }
        }

        Mqtt3Publish next() throws InterruptedException {
            return publishes.receive(Peer.DEADLINE_S, TimeUnit.SECONDS)
                    .orElseThrow(() -> new AssertionError("no message within " + Peer.DEADLINE_S + " s"));
        }

        List<String> texts(int count) throws InterruptedException {
            List<String> got = new ArrayList<>();
            while (got.size() < count) {
                got.add(text(next()));
            }
            return got;
        }

        @Override
        public void close() {
            try {
                client.disconnect();
            } catch (MqttClientStateException ended) {
                // As in Peer.
            }
            publishes.close();
        }
    }

    private static String text(Mqtt3Publish message) {
        return new String(message.getPayloadAsBytes(), java.nio.charset.StandardCharsets.UTF_8);
    }

    // [MQTT3-4.6.0-6] [MQTT3-4.3.3-2] [MQTT3-3.8.4-6]
    @ParameterizedTest
    @EnumSource
    void aRunOfMessagesArrivesOnceAndInOrder(MqttQos qos) throws Exception {
        String topic = unique("run");
        try (Older subscriber = Older.connected("s"); Older publisher = Older.connected("p")) {
            subscriber.subscribe(topic, qos);
            List<String> sent = Peer.numbers(300);
            publisher.publishAll(topic, sent, qos);
            publisher.publish(topic, "end", qos);
            assertEquals(sent, subscriber.texts(sent.size()));
            Mqtt3Publish end = subscriber.next();
            assertEquals("end", text(end));
            assertEquals(qos, end.getQos());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLargeMessageArrivesWhole(MqttQos qos) throws Exception {
        String topic = unique("large");
        byte[] payload = new byte[2_000_000];
        payload[payload.length - 1] = 1;
        try (Older peer = Older.connected("a")) {
            peer.subscribe(topic, qos);
            peer.client.publishWith().topic(topic).qos(qos).payload(payload).send();
            assertArrayEquals(payload, peer.next().getPayloadAsBytes());
        }
    }

    // [MQTT3-3.3.1-6] [MQTT3-3.3.1-8] [MQTT3-3.3.1-9] [MQTT3-3.3.1-10]
    @Test
    void aRetainedMessageIsKeptAndCleared() throws Exception {
        String topic = unique("retained");
        try (Older publisher = Older.connected("p"); Older late = Older.connected("l"); Older later = Older.connected("m")) {
            publisher.publishRetained(topic, "kept");
            late.subscribe(topic, MqttQos.AT_LEAST_ONCE);
            Mqtt3Publish message = late.next();
            assertEquals("kept", text(message));
            assertTrue(message.isRetain());
            publisher.publishRetained(topic, "");
            assertFalse(late.next().isRetain());
            later.subscribe(topic, MqttQos.AT_LEAST_ONCE);
            later.publish(topic, "end", MqttQos.AT_LEAST_ONCE);
            assertEquals("end", text(later.next()));
        }
    }

    // [MQTT3-3.1.2-4] [MQTT3-3.1.2-5] [MQTT3-3.1.2-6] [MQTT3-3.2.2-2]
    @Test
    void messagesWaitForAnAbsentClient() throws Exception {
        String topic = unique("queue");
        try (Older publisher = Older.connected("p"); Older peer = new Older(unique("s"), port)) {
            assertFalse(peer.connect(false));
            peer.subscribe(topic, MqttQos.EXACTLY_ONCE);
            peer.client.disconnect();
            List<String> sent = Peer.numbers(200);
            publisher.publishAll(topic, sent, MqttQos.EXACTLY_ONCE);
            assertTrue(peer.connect(false));
            assertEquals(sent, peer.texts(sent.size()));
            peer.client.disconnect();
            assertFalse(peer.connect(true));
        }
    }

    // [MQTT3-3.1.2-8]; not after a DISCONNECT [MQTT3-3.14.4-3].
    @Test
    void aLostConnectionLeavesAWillAndANormalEndDoesNot() throws Exception {
        String topic = unique("will");
        String identifier = unique("a");
        try (Older watcher = Older.connected("w"); Wire wire = new Wire(host, port)) {
            watcher.subscribe(topic, MqttQos.AT_LEAST_ONCE);
            try (Older leaving = new Older(identifier, port)) {
                leaving.client.connectWith().willPublish().topic(topic).payload(Peer.bytes("unheard")).applyWillPublish()
                        .send();
            }
            // The same client identifier again: its CONNACK shows that the server has closed the old connection.
            Older again = new Older(identifier, wire.port());
            again.client.connectWith().willPublish().topic(topic).payload(Peer.bytes("gone")).applyWillPublish().send();
            again.publish(topic, "first", MqttQos.AT_LEAST_ONCE);
            wire.cut();
            assertEquals(List.of("first", "gone"), watcher.texts(2));
            // The client is already disconnected.
            again.publishes.close();
        }
    }

    // [MQTT3-3.1.4-2]
    @Test
    void aSecondConnectionTakesOver() throws Exception {
        String identifier = unique("a");
        try (Older first = new Older(identifier, port); Older second = new Older(identifier, port)) {
            first.connect(true);
            second.connect(true);
            assertTrue(first.disconnected.poll(Peer.DEADLINE_S, TimeUnit.SECONDS) != null, "the first is thrown out");
            second.subscribe(identifier, MqttQos.AT_LEAST_ONCE);
            second.publish(identifier, "mine now", MqttQos.AT_LEAST_ONCE);
            assertEquals("mine now", text(second.next()));
        }
    }

    // [MQTT3-3.10.4-1] [MQTT3-3.10.4-2]
    @Test
    void anUnsubscribedClientGetsNoMore() throws IOException, InterruptedException {
        String topic = unique("unsubscribe");
        try (Older peer = Older.connected("a")) {
            peer.subscribe(topic + "/a", MqttQos.AT_LEAST_ONCE);
            peer.subscribe(topic + "/b", MqttQos.AT_LEAST_ONCE);
            peer.client.unsubscribeWith().topicFilter(topic + "/a").send();
            peer.publish(topic + "/a", "unheard", MqttQos.AT_LEAST_ONCE);
            peer.publish(topic + "/b", "end", MqttQos.AT_LEAST_ONCE);
            assertEquals("end", text(peer.next()));
        }
    }
}
