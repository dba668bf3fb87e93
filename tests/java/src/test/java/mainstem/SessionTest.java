package mainstem;

import static mainstem.Peer.letPass;
import static mainstem.Peer.numbers;
import static mainstem.Peer.text;
import static mainstem.Peer.texts;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5ConnectBuilder;
import com.hivemq.client.mqtt.mqtt5.message.disconnect.Mqtt5DisconnectReasonCode;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Version 5: sessions, wills, take-over, keep alive, flow control. */
class SessionTest extends WithBroker {
    private static final Mqtt5DisconnectReasonCode NORMAL = Mqtt5DisconnectReasonCode.NORMAL_DISCONNECTION;

    /** Connects with a persistent session and resumes it if it exists. */
    private static UnaryOperator<Mqtt5ConnectBuilder> durable(long seconds) {
        return connect -> connect.cleanStart(false).sessionExpiryInterval(seconds);
    }

    private static UnaryOperator<Mqtt5ConnectBuilder> leaving(String topic, String payload, long delay) {
        return connect -> connect.sessionExpiryInterval(1000).willPublish().topic(topic)
                .qos(MqttQos.AT_LEAST_ONCE).payload(Peer.bytes(payload)).delayInterval(delay)
                .userProperties().add("b", "1").add("a", "2").applyUserProperties().applyWillPublish();
    }

    private static Peer watching(String topic) {
        Peer watcher = new Peer(unique("w"));
        watcher.subscribe(topic, MqttQos.AT_LEAST_ONCE);
        return watcher;
    }

    // [MQTT5-3.1.2-5] [MQTT5-3.1.2-23] [MQTT5-3.2.2-3] [MQTT5-4.5.0-1] [MQTT5-4.6.0-5]
    @ParameterizedTest
    @EnumSource(names = "AT_MOST_ONCE", mode = EnumSource.Mode.EXCLUDE)
    void messagesWaitForAnAbsentClient(MqttQos qos) throws Exception {
        String topic = unique("queue");
        try (Peer publisher = new Peer(unique("p")); Peer peer = new Peer(unique("s"), durable(1000))) {
            assertFalse(peer.connack.isSessionPresent());
            peer.subscribe(topic, qos);
            peer.client.disconnect();
            List<String> sent = numbers(300);
            publisher.publishAll(topic, sent, qos);
            peer.connect();
            assertTrue(peer.connack.isSessionPresent());
            assertEquals(sent, texts(peer.receive(sent.size())));
            publisher.publish(topic, "end", qos);
            assertEquals(List.of(), peer.receiveUntil("end"));
            peer.leave(NORMAL, 0);
            peer.connect();
            assertFalse(peer.connack.isSessionPresent(), "DISCONNECT ended the session");
            peer.leave(NORMAL, 0);
        }
    }

    // [MQTT5-4.4.0-1] [MQTT5-4.3.3-10]: every message once, over five lost connections.
    @Test
    void aBusySessionSurvivesLostConnections() throws Exception {
        String topic = unique("moving");
        List<String> sent = numbers(500);
        try (Peer publisher = new Peer(unique("p")); Wire wire = new Wire(host, port);
                Peer peer = new Peer(unique("s"), "127.0.0.1", wire.port(), false, durable(1000))) {
            peer.subscribe(topic, MqttQos.EXACTLY_ONCE);
            for (int from = 0; from < sent.size(); from += 100) {
                publisher.publishAll(topic, sent.subList(from, from + 100), MqttQos.EXACTLY_ONCE);
                wire.cut();
                peer.awaitDisconnected();
                peer.connect();
                assertTrue(peer.connack.isSessionPresent());
            }
            List<String> got = new ArrayList<>(texts(peer.receive(sent.size())));
            publisher.publish(topic, "end", MqttQos.EXACTLY_ONCE);
            assertEquals(List.of(), peer.receiveUntil("end"));
            got.sort(Comparator.comparing(Integer::valueOf));
            assertEquals(sent, got);
            peer.leave(NORMAL, 0);
        }
    }

    // [MQTT5-3.1.2-8] [MQTT5-3.1.3-10]; not after a normal DISCONNECT [MQTT5-3.14.4-3].
    @Test
    void aLostConnectionLeavesAWillAndANormalEndDoesNot() throws Exception {
        String topic = unique("will");
        String identifier = unique("a");
        try (Peer watcher = watching(topic); Wire wire = new Wire(host, port)) {
            new Peer(identifier, leaving(topic, "unheard", 0)).client.disconnect();
            // The same client identifier again: its CONNACK shows that the server has closed the old connection.
            Peer again = new Peer(identifier, "127.0.0.1", wire.port(), false, leaving(topic, "gone", 0));
            again.publish(topic, "first", MqttQos.AT_LEAST_ONCE);
            wire.cut();
            List<Mqtt5Publish> got = watcher.receive(2);
            assertEquals(List.of("first", "gone"), texts(got));
            assertEquals("[(b, 1), (a, 2)]", got.get(1).getUserProperties().asList().toString());
            again.awaitDisconnected();
            again.close();
        }
    }

    // DISCONNECT with reason 0x04 (MQTT 5, 3.14.2.1).
    @Test
    void disconnectWithWillMessagePublishesIt() throws Exception {
        String topic = unique("will");
        try (Peer watcher = watching(topic)) {
            new Peer(unique("a"), leaving(topic, "gone", 0))
                    .leave(Mqtt5DisconnectReasonCode.DISCONNECT_WITH_WILL_MESSAGE, 0);
            assertEquals("gone", text(watcher.next()));
        }
    }

    // [MQTT5-3.1.2-8] [MQTT5-3.1.3-9]
    @Test
    void aWillWaitsForItsDelayAndIsCancelledByAReturn() throws Exception {
        String topic = unique("will");
        Mqtt5DisconnectReasonCode withWill = Mqtt5DisconnectReasonCode.DISCONNECT_WITH_WILL_MESSAGE;
        String identifier = unique("a");
        try (Peer watcher = watching(topic)) {
            new Peer(identifier, leaving(topic, "cancelled", 1)).leave(withWill, 1000);
            try (Peer back = new Peer(identifier, durable(0))) {
                assertTrue(back.connack.isSessionPresent());
                long start = System.nanoTime();
                new Peer(unique("b"), leaving(topic, "late", 2)).leave(withWill, 1000);
                watcher.publish(topic, "first", MqttQos.AT_LEAST_ONCE);
                assertEquals(List.of("first", "late"), texts(watcher.receive(2)));
                long waited = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start);
                assertTrue(waited > 1500 && waited < 5000, () -> waited + " ms");
            }
        }
    }

    // [MQTT5-4.1.0-2] [MQTT5-3.3.2-5] [MQTT5-3.3.2-6]
    @Test
    void sessionsAndTheirMessagesExpire() throws Exception {
        String topic = unique("expiry");
        try (Peer shortLived = new Peer(unique("a"), durable(1)); Peer longLived = new Peer(unique("b"), durable(1000));
                Peer publisher = new Peer(unique("p"))) {
            longLived.subscribe(topic, MqttQos.AT_LEAST_ONCE);
            longLived.client.disconnect();
            shortLived.client.disconnect();
            for (int seconds : new int[] {1, 100}) {
                publisher.client.publishWith().topic(topic).qos(MqttQos.AT_LEAST_ONCE).payload(Peer.bytes("" + seconds))
                        .messageExpiryInterval(seconds).send();
            }
            letPass(2500);
            publisher.publish(topic, "end", MqttQos.AT_LEAST_ONCE);
            shortLived.connect();
            longLived.connect();
            assertFalse(shortLived.connack.isSessionPresent());
            assertTrue(longLived.connack.isSessionPresent());
            List<Mqtt5Publish> got = longLived.receiveUntil("end");
            assertEquals(List.of("100"), texts(got));
            long left = got.get(0).getMessageExpiryInterval().orElseThrow();
            assertTrue(left >= 90 && left <= 98, () -> left + " s left");
            longLived.leave(NORMAL, 0);
        }
    }

    // [MQTT5-3.1.4-3]
    @Test
    void aSecondConnectionTakesOver() throws Exception {
        String identifier = unique("a");
        try (Peer first = new Peer(identifier); Peer second = new Peer(identifier)) {
            assertEquals(Mqtt5DisconnectReasonCode.SESSION_TAKEN_OVER, first.disconnectReason());
            second.subscribe(identifier, MqttQos.AT_LEAST_ONCE);
            second.publish(identifier, "mine now", MqttQos.AT_LEAST_ONCE);
            assertEquals("mine now", text(second.next()));
        }
    }

    // [MQTT5-3.12.4-1]
    @Test
    void pingsKeepAnIdleConnection() throws Exception {
        try (Peer idle = new Peer(unique("a"), connect -> connect.keepAlive(1))) {
            letPass(2200);
            assertTrue(idle.disconnected.isEmpty() && idle.client.getState().isConnected());
        }
    }

    // [MQTT5-3.3.4-9] [MQTT5-4.9.0-2] [MQTT5-4.9.0-3]
    @ParameterizedTest
    @EnumSource(names = "AT_MOST_ONCE", mode = EnumSource.Mode.EXCLUDE)
    void theReceiveMaximumOfAClientIsRespected(MqttQos qos) throws Exception {
        String topic = unique("flow");
        String fence = unique("fence");
        UnaryOperator<Mqtt5ConnectBuilder> narrow =
                connect -> connect.restrictions().receiveMaximum(3).applyRestrictions();
        try (Peer slow = new Peer(unique("s"), host, port, true, narrow); Peer publisher = new Peer(unique("p"))) {
            slow.subscribe(topic, qos);
            slow.subscribe(fence, MqttQos.AT_MOST_ONCE);
            List<String> sent = numbers(30);
            publisher.publishAll(topic, sent, qos);
            List<Mqtt5Publish> got = slow.receive(3);
            for (int next = 0; next < sent.size(); next++) {
                // QoS 0 is not held back, and shows that no other message is in transit.
                publisher.publish(fence, "fence", MqttQos.AT_MOST_ONCE);
                for (Mqtt5Publish early : slow.receiveUntil("fence")) {
                    throw new AssertionError(text(early) + " came before " + text(got.get(next)) + " was acknowledged");
                }
                got.get(next).acknowledge();
                if (got.size() < sent.size()) {
                    got.add(slow.next());
                }
            }
            assertEquals(sent, texts(got));
        }
    }
}
