package mainstem;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.datatypes.MqttUtf8String;
import com.hivemq.client.mqtt.mqtt5.Mqtt5BlockingClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5ClientConfig;
import com.hivemq.client.mqtt.mqtt5.auth.Mqtt5EnhancedAuthMechanism;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5ConnAckException;
import com.hivemq.client.mqtt.mqtt5.message.auth.Mqtt5Auth;
import com.hivemq.client.mqtt.mqtt5.message.auth.Mqtt5AuthBuilder;
import com.hivemq.client.mqtt.mqtt5.message.auth.Mqtt5EnhancedAuthBuilder;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5Connect;
import com.hivemq.client.mqtt.mqtt5.message.connect.connack.Mqtt5ConnAck;
import com.hivemq.client.mqtt.mqtt5.message.connect.connack.Mqtt5ConnAckReasonCode;
import com.hivemq.client.mqtt.mqtt5.message.disconnect.Mqtt5Disconnect;
import com.hivemq.client.mqtt.mqtt5.message.disconnect.Mqtt5DisconnectReasonCode;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.crypto.Mac;
import javax.crypto.SecretKeyFactory;
import javax.crypto.spec.PBEKeySpec;
import javax.crypto.spec.SecretKeySpec;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Version 5: enhanced authentication (4.12) with SCRAM, and re-authentication. */
class EnhancedAuthTest {
    private static final int DEADLINE_S = 30;
    private static Process broker;
    private static Path data;
    private static String host;
    private static int port;

    @BeforeAll
    static void start() throws Exception {
        data = Files.createTempDirectory("mainstem-test-");
        for (String user : new String[] {"alice", "bob"}) {
            Process add = new ProcessBuilder(WithBroker.binary(), "user", "add", user, "--data", data.toString()).start();
            add.getOutputStream().write(("password of " + user + "\n").getBytes(StandardCharsets.UTF_8));
            add.getOutputStream().close();
            assertTrue(add.waitFor(DEADLINE_S, TimeUnit.SECONDS));
            assertEquals(0, add.exitValue());
        }
        broker = new ProcessBuilder(WithBroker.binary(), "--listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0",
                "--http-listen", "127.0.0.1:0", "--data", data.toString()).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        Pattern ready = Pattern.compile("mqtt listening on (\\S+):(\\d+)$");
        Matcher found = broker.inputReader().lines().map(ready::matcher).filter(Matcher::find).findFirst().orElseThrow();
        host = found.group(1);
        port = Integer.parseInt(found.group(2));
    }

    @AfterAll
    static void stop() throws Exception {
        broker.destroy();
        assertTrue(broker.waitFor(DEADLINE_S, TimeUnit.SECONDS));
        assertEquals(0, broker.exitValue());
        WithBroker.delete(data);
    }

    private static Mqtt5BlockingClient client(Scram scram) {
        return MqttClient.builder().useMqttVersion5().identifier("e-" + UUID.randomUUID()).serverHost(host).serverPort(port)
                .enhancedAuth(scram).buildBlocking();
    }

    // [MQTT5-4.12.0-2] [MQTT5-4.12.0-5]
    @ParameterizedTest
    @ValueSource(strings = {"SCRAM-SHA-256", "SCRAM-SHA-512"})
    void bothSidesProveThatTheyKnowThePassword(String method) throws Exception {
        Scram scram = new Scram(method, "alice", "password of alice");
        Mqtt5BlockingClient client = client(scram);
        assertEquals(Mqtt5ConnAckReasonCode.SUCCESS, client.connect().getReasonCode());
        assertEquals(1, scram.proven);
        client.publishWith().topic("a").qos(com.hivemq.client.mqtt.datatypes.MqttQos.AT_LEAST_ONCE).send();
        client.toAsync().reauth().get(DEADLINE_S, TimeUnit.SECONDS);
        client.toAsync().reauth().get(DEADLINE_S, TimeUnit.SECONDS);
        assertEquals(3, scram.proven);
        client.publishWith().topic("a").qos(com.hivemq.client.mqtt.datatypes.MqttQos.AT_LEAST_ONCE).send();
        client.disconnect();
    }

    // [MQTT5-4.12.0-4]
    @Test
    void aWrongPasswordAndAnUnknownUserAreRefusedAlike() {
        for (String user : new String[] {"alice", "nobody"}) {
            Mqtt5BlockingClient client = client(new Scram("SCRAM-SHA-256", user, "wrong"));
            Mqtt5ConnAckException refused = assertThrows(Mqtt5ConnAckException.class, client::connect);
            assertEquals(Mqtt5ConnAckReasonCode.BAD_USER_NAME_OR_PASSWORD, refused.getMqttMessage().getReasonCode());
        }
    }

    // [MQTT5-4.12.0-1]
    @Test
    void anUnknownMethodIsRefused() {
        Mqtt5BlockingClient client = client(new Scram("SCRAM-SHA-1", "alice", "password of alice"));
        Mqtt5ConnAckException refused = assertThrows(Mqtt5ConnAckException.class, client::connect);
        assertEquals(Mqtt5ConnAckReasonCode.BAD_AUTHENTICATION_METHOD, refused.getMqttMessage().getReasonCode());
    }

    // [MQTT5-4.12.1-2]
    @Test
    void anotherUserCannotReauthenticate() throws Exception {
        Scram scram = new Scram("SCRAM-SHA-256", "alice", "password of alice");
        Mqtt5BlockingClient client = client(scram);
        client.connect();
        scram.user = "bob";
        scram.password = "password of bob";
        assertThrows(Exception.class, () -> client.toAsync().reauth().get(DEADLINE_S, TimeUnit.SECONDS));
        assertEquals(Mqtt5DisconnectReasonCode.NOT_AUTHORIZED, scram.rejected.get(DEADLINE_S, TimeUnit.SECONDS));
    }

    /** The client's side of RFC 5802. */
    private static final class Scram implements Mqtt5EnhancedAuthMechanism {
        private final String method;
        private final CompletableFuture<Mqtt5DisconnectReasonCode> rejected = new CompletableFuture<>();
        private String user;
        private String password;
        private String firstBare;
        private byte[] signature;
        /** How often the server has proven itself. */
        private int proven;

        Scram(String method, String user, String password) {
            this.method = method;
            this.user = user;
            this.password = password;
        }

        private byte[] first() {
            firstBare = "n=" + user + ",r=" + UUID.randomUUID();
            return ("n,," + firstBare).getBytes(StandardCharsets.UTF_8);
        }

        private byte[] last(String serverFirst) throws Exception {
            String hash = method.substring("SCRAM-".length()).replace("-", "");
            String[] parts = serverFirst.split(",");
            byte[] salt = Base64.getDecoder().decode(parts[1].substring(2));
            int iterations = Integer.parseInt(parts[2].substring(2));
            MessageDigest digest = MessageDigest.getInstance(method.substring("SCRAM-".length()));
            int bits = digest.getDigestLength() * 8;
            byte[] salted = SecretKeyFactory.getInstance("PBKDF2WithHmac" + hash)
                    .generateSecret(new PBEKeySpec(password.toCharArray(), salt, iterations, bits)).getEncoded();
            String withoutProof = "c=biws," + parts[0];
            byte[] message = (firstBare + "," + serverFirst + "," + withoutProof).getBytes(StandardCharsets.UTF_8);
            byte[] clientKey = hmac(hash, salted, "Client Key".getBytes(StandardCharsets.UTF_8));
            byte[] proof = hmac(hash, digest.digest(clientKey), message);
            for (int at = 0; at < proof.length; at++) {
                proof[at] ^= clientKey[at];
            }
            signature = hmac(hash, hmac(hash, salted, "Server Key".getBytes(StandardCharsets.UTF_8)), message);
            return (withoutProof + ",p=" + Base64.getEncoder().encodeToString(proof)).getBytes(StandardCharsets.UTF_8);
        }

        private static byte[] hmac(String hash, byte[] key, byte[] message) throws Exception {
            Mac mac = Mac.getInstance("Hmac" + hash);
            mac.init(new SecretKeySpec(key, "Hmac" + hash));
            return mac.doFinal(message);
        }

        private CompletableFuture<Boolean> check(ByteBuffer data) {
            String expected = "v=" + Base64.getEncoder().encodeToString(signature);
            boolean isProven = expected.equals(StandardCharsets.UTF_8.decode(data).toString());
            proven += isProven ? 1 : 0;
            return CompletableFuture.completedFuture(isProven);
        }

        @Override
        public MqttUtf8String getMethod() {
            return MqttUtf8String.of(method);
        }

        @Override
        public int getTimeout() {
            return DEADLINE_S;
        }

        @Override
        public CompletableFuture<Void> onAuth(Mqtt5ClientConfig config, Mqtt5Connect connect, Mqtt5EnhancedAuthBuilder auth) {
            auth.data(first());
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public CompletableFuture<Void> onReAuth(Mqtt5ClientConfig config, Mqtt5AuthBuilder auth) {
            auth.data(first());
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public CompletableFuture<Boolean> onContinue(Mqtt5ClientConfig config, Mqtt5Auth received, Mqtt5AuthBuilder auth) {
            try {
                auth.data(last(StandardCharsets.UTF_8.decode(received.getData().orElseThrow()).toString()));
                return CompletableFuture.completedFuture(true);
            } catch (Exception failure) {
                return CompletableFuture.failedFuture(failure);
            }
        }

        @Override
        public CompletableFuture<Boolean> onAuthSuccess(Mqtt5ClientConfig config, Mqtt5ConnAck connAck) {
            return check(connAck.getEnhancedAuth().orElseThrow().getData().orElseThrow());
        }

        @Override
        public CompletableFuture<Boolean> onReAuthSuccess(Mqtt5ClientConfig config, Mqtt5Auth auth) {
            return check(auth.getData().orElseThrow());
        }

        @Override
        public void onAuthRejected(Mqtt5ClientConfig config, Mqtt5ConnAck connAck) {}

        @Override
        public void onReAuthRejected(Mqtt5ClientConfig config, Mqtt5Disconnect disconnect) {
            rejected.complete(disconnect.getReasonCode());
        }

        @Override
        public void onAuthError(Mqtt5ClientConfig config, Throwable cause) {}

        @Override
        public void onReAuthError(Mqtt5ClientConfig config, Throwable cause) {
            rejected.completeExceptionally(cause);
        }
    }
}
