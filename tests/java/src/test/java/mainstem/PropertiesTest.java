package mainstem;

import static mainstem.Peer.text;
import static mainstem.Peer.texts;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PayloadFormatIndicator;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import java.nio.ByteBuffer;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Version 5: properties, topic aliases, packet sizes. */
class PropertiesTest extends WithBroker {
    // [MQTT5-3.3.2-4] [MQTT5-3.3.2-15] [MQTT5-3.3.2-16] [MQTT5-3.3.2-17] [MQTT5-3.3.2-18] [MQTT5-3.3.2-20]
    @ParameterizedTest
    @EnumSource
    void applicationPropertiesArriveUnaltered(MqttQos qos) throws Exception {
        String topic = unique("properties");
        try (Peer peer = new Peer(unique("a"))) {
            peer.subscribe(topic, qos);
            Mqtt5Publish sent = Mqtt5Publish.builder().topic(topic).qos(qos).payload(Peer.bytes("x"))
                    .contentType("text/plain").responseTopic(topic + "/answer").correlationData(new byte[] {0, 1, -1})
                    .payloadFormatIndicator(Mqtt5PayloadFormatIndicator.UTF_8).messageExpiryInterval(100)
                    .userProperties().add("b", "2").add("a", "1").add("b", "1").add("", "").applyUserProperties()
                    .build();
            peer.client.publish(sent);
            Mqtt5Publish got = peer.next();
            assertEquals(sent.getContentType(), got.getContentType());
            assertEquals(sent.getResponseTopic(), got.getResponseTopic());
            assertEquals(sent.getCorrelationData(), got.getCorrelationData());
            assertEquals(sent.getPayloadFormatIndicator(), got.getPayloadFormatIndicator());
            assertEquals(sent.getUserProperties(), got.getUserProperties());
            long expiry = got.getMessageExpiryInterval().orElseThrow();
            assertTrue(expiry >= 98 && expiry <= 100, () -> expiry + " s");
        }
    }

    // MQTT 5, 4.10
    @Test
    void aRequestIsAnswered() throws Exception {
        String topic = unique("request");
        try (Peer asking = new Peer(unique("a")); Peer answering = new Peer(unique("b"))) {
            asking.subscribe(topic + "/answers", MqttQos.AT_LEAST_ONCE);
            answering.subscribe(topic, MqttQos.AT_LEAST_ONCE);
            asking.client.publishWith().topic(topic).qos(MqttQos.AT_LEAST_ONCE).responseTopic(topic + "/answers")
                    .correlationData(new byte[] {7}).send();
            Mqtt5Publish question = answering.next();
            answering.client.publishWith().topic(question.getResponseTopic().orElseThrow()).qos(MqttQos.AT_LEAST_ONCE)
                    .correlationData(question.getCorrelationData().orElseThrow()).payload(Peer.bytes("4")).send();
            Mqtt5Publish answer = asking.next();
            assertEquals("4", text(answer));
            assertEquals(ByteBuffer.wrap(new byte[] {7}), answer.getCorrelationData().orElseThrow());
        }
    }

    // [MQTT5-3.3.2-12] [MQTT5-3.1.2-26] [MQTT5-3.3.2-11]: the client assigns aliases automatically and resolves the server's.
    @Test
    void topicAliasesStandForTheirTopics() throws Exception {
        String topic = unique("alias");
        try (Peer publisher = new Peer(unique("p"),
                        connect -> connect.restrictions().sendTopicAliasMaximum(8).applyRestrictions());
                Peer subscriber = new Peer(unique("s"),
                        connect -> connect.restrictions().topicAliasMaximum(3).applyRestrictions())) {
            assertTrue(publisher.connack.getRestrictions().getTopicAliasMaximum() > 0);
            subscriber.subscribe(topic + "/#", MqttQos.AT_LEAST_ONCE);
            for (int number = 0; number < 100; number++) {
                String name = topic + "/" + number % 12;
                publisher.publish(name, name, MqttQos.AT_LEAST_ONCE);
                Mqtt5Publish got = subscriber.next();
                assertEquals(name, got.getTopic().toString());
                assertEquals(name, text(got));
            }
        }
    }

    // [MQTT5-3.1.2-24] [MQTT5-3.1.2-25]
    @Test
    void aClientStatesTheLargestPacketItTakes() throws Exception {
        String topic = unique("small");
        try (Peer small = new Peer(unique("s"),
                        connect -> connect.restrictions().maximumPacketSize(500).applyRestrictions());
                Peer other = new Peer(unique("o"))) {
            small.subscribe(topic, MqttQos.AT_LEAST_ONCE);
            for (String payload : List.of("x".repeat(1000), "fits", "end")) {
                other.publish(topic, payload, MqttQos.AT_LEAST_ONCE);
            }
            assertEquals(List.of("fits"), texts(small.receiveUntil("end")));
        }
    }
}
