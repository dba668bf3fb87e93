package mainstem;

import static org.junit.jupiter.api.Assertions.assertTrue;

import com.hivemq.client.mqtt.MqttClientState;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.exceptions.MqttClientStateException;
import com.hivemq.client.mqtt.lifecycle.MqttClientDisconnectedContext;
import com.hivemq.client.mqtt.mqtt5.Mqtt5BlockingClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5Client;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5DisconnectException;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5Connect;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5ConnectBuilder;
import com.hivemq.client.mqtt.mqtt5.message.connect.connack.Mqtt5ConnAck;
import com.hivemq.client.mqtt.mqtt5.message.disconnect.Mqtt5DisconnectReasonCode;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PublishResult;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;

/** A version 5 client for tests: every wait has a deadline. */
final class Peer implements AutoCloseable {
    static final int DEADLINE_S = 30;

    final Mqtt5BlockingClient client;
    final BlockingQueue<MqttClientDisconnectedContext> disconnected = new LinkedBlockingQueue<>();
    private final Mqtt5BlockingClient.Mqtt5Publishes publishes;
    private final UnaryOperator<Mqtt5ConnectBuilder> connect;
    Mqtt5ConnAck connack;

    /** Connects with a clean start. */
    Peer(String identifier) {
        this(identifier, connect -> connect);
    }

    Peer(String identifier, UnaryOperator<Mqtt5ConnectBuilder> connect) {
        this(identifier, WithBroker.host, WithBroker.port, false, connect);
    }

    Peer(String identifier, String host, int port, boolean manualAcknowledgement,
            UnaryOperator<Mqtt5ConnectBuilder> connect) {
        this.connect = connect;
        client = Mqtt5Client.builder().identifier(identifier).serverHost(host).serverPort(port)
                .addDisconnectedListener(disconnected::add).buildBlocking();
        publishes = client.publishes(MqttGlobalPublishFilter.ALL, manualAcknowledgement);
        connect();
    }

    /** Waits until the server or the network has ended the connection. */
    void awaitDisconnected() throws InterruptedException {
        assertTrue(disconnected.poll(DEADLINE_S, TimeUnit.SECONDS) != null, "the connection ends");
        // The client calls its listeners first and changes its state afterwards.
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(DEADLINE_S);
        while (client.getState() != MqttClientState.DISCONNECTED) {
            assertTrue(System.nanoTime() < deadline, () -> client.getState().toString());
            Thread.onSpinWait();
        }
    }

    /** Connects a disconnected client again with the same options. */
    void connect() {
        connack = client.connect(connect.apply(Mqtt5Connect.builder())
                .build());
    }

    void subscribe(String filter, MqttQos qos) {
        var granted = client.subscribeWith().topicFilter(filter).qos(qos).send().getReasonCodes();
        assertTrue(granted.size() == 1 && granted.get(0).getCode() == qos.getCode(), granted::toString);
    }

    /** Publishes, and returns when the QoS handshake is complete. */
    void publish(String topic, String payload, MqttQos qos) {
        client.publishWith().topic(topic).qos(qos).payload(bytes(payload)).send();
    }

    void publishRetained(String topic, String payload) {
        client.publishWith().topic(topic).qos(MqttQos.AT_LEAST_ONCE).payload(bytes(payload)).retain(true).send();
    }

    /** Publishes in order, within the server's receive maximum, and waits for all handshakes. */
    void publishAll(String topic, List<String> payloads, MqttQos qos) throws Exception {
        List<CompletableFuture<Mqtt5PublishResult>> underWay = new ArrayList<>();
        for (String payload : payloads) {
            underWay.add(client.toAsync().publishWith().topic(topic).qos(qos).payload(bytes(payload)).send());
        }
        CompletableFuture.allOf(underWay.toArray(CompletableFuture[]::new)).get(DEADLINE_S, TimeUnit.SECONDS);
    }

    Mqtt5Publish next() throws InterruptedException {
        return publishes.receive(DEADLINE_S, TimeUnit.SECONDS)
                .orElseThrow(() -> new AssertionError("no message within " + DEADLINE_S + " s"));
    }

    List<Mqtt5Publish> receive(int count) throws InterruptedException {
        List<Mqtt5Publish> got = new ArrayList<>();
        while (got.size() < count) {
            got.add(next());
        }
        return got;
    }

    /** The messages before the one with this payload, which a test sends last to show that nothing else arrives. */
    List<Mqtt5Publish> receiveUntil(String last) throws InterruptedException {
        List<Mqtt5Publish> got = new ArrayList<>();
        for (Mqtt5Publish message = next(); !text(message).equals(last); message = next()) {
            got.add(message);
        }
        return got;
    }

    /** Waits for the server's DISCONNECT and returns its reason code. */
    Mqtt5DisconnectReasonCode disconnectReason() throws InterruptedException {
        MqttClientDisconnectedContext context = disconnected.poll(DEADLINE_S, TimeUnit.SECONDS);
        assertTrue(context != null && context.getCause() instanceof Mqtt5DisconnectException,
                () -> String.valueOf(context == null ? null : context.getCause()));
        return ((Mqtt5DisconnectException) context.getCause()).getMqttMessage().getReasonCode();
    }

    /** Disconnects with this reason code and session expiry interval. */
    void leave(Mqtt5DisconnectReasonCode reason, long sessionExpiry) {
        client.disconnectWith().reasonCode(reason).sessionExpiryInterval(sessionExpiry).send();
    }

    @Override
    public void close() {
        try {
            client.disconnect();
        } catch (MqttClientStateException ended) {
            // The connection has ended already. The state cannot be asked before: it changes after the listeners' call.
        }
        publishes.close();
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(Mqtt5Publish message) {
        return new String(message.getPayloadAsBytes(), StandardCharsets.UTF_8);
    }

    static List<String> texts(List<Mqtt5Publish> messages) {
        return messages.stream().map(Peer::text).toList();
    }

    static List<String> numbers(int count) {
        return IntStream.range(0, count).mapToObj(String::valueOf).toList();
    }

    /** Lets time pass, for tests of an interval of the protocol. */
    static void letPass(long milliseconds) throws InterruptedException {
        Thread.sleep(milliseconds);
    }
}
