// MQTT.js: properties, topic aliases, subscription options and flow control of MQTT 5.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sharedBroker } from './broker.js';
import { Peer, Queue, numbers, unique, withPeers } from './peer.js';

const broker = sharedBroker();
const connect = (clientId, options) => Peer.connect(broker, clientId, options);

// [MQTT5-3.3.2-4] [MQTT5-3.3.2-15] [MQTT5-3.3.2-16] [MQTT5-3.3.2-17] [MQTT5-3.3.2-18] [MQTT5-3.3.2-20]
test('application properties arrive unaltered', async () => {
  const topic = unique();
  const properties = {
    payloadFormatIndicator: true,
    responseTopic: `${topic}/answer`,
    correlationData: Buffer.from([0, 1, 255]),
    userProperties: { b: ['2', '1'], a: '値' },
    contentType: 'text/plain',
  };
  await withPeers([connect(unique())], async (peer) => {
    await peer.subscribe(topic, { qos: 1 });
    await peer.publish(topic, 'x', { qos: 1, properties });
    const got = (await peer.next()).properties;
    assert.deepEqual({ ...got, userProperties: { ...got.userProperties } }, properties);
    assert.deepEqual(Object.keys(got.userProperties), ['b', 'a']);
  });
});

// MQTT 5, 4.10
test('a request is answered', async () => {
  const topic = unique();
  await withPeers([connect(unique()), connect(unique())], async (asking, answering) => {
    await asking.subscribe(`${topic}/answers`, { qos: 1 });
    await answering.subscribe(`${topic}/questions`, { qos: 1 });
    const correlationData = Buffer.from('q1');
    const properties = { responseTopic: `${topic}/answers`, correlationData };
    await asking.publish(`${topic}/questions`, '2+2', { qos: 1, properties });
    const { properties: asked } = await answering.next();
    const { correlationData: same } = asked;
    await answering.publish(asked.responseTopic, '4', { qos: 1, properties: { correlationData: same } });
    const answer = await asking.next();
    assert.ok(answer.text === '4' && correlationData.equals(answer.properties.correlationData));
  });
});

for (const mode of ['autoAssignTopicAlias', 'autoUseTopicAlias']) {
  // [MQTT5-3.3.2-12]: also when aliases run out and are assigned to other topics.
  test(`topic aliases towards the server: ${mode}`, async () => {
    const topic = unique();
    await withPeers([connect(unique()), connect(unique(), { [mode]: true })], async (subscriber, publisher) => {
      await subscriber.subscribe(`${topic}/#`, { qos: 1 });
      const maximum = publisher.connack.properties.topicAliasMaximum;
      assert.ok(maximum > 0);
      const sent = numbers(200).map((number) => `${topic}/${number % (2 * maximum)}`);
      for (const [number, name] of sent.entries()) {
        const alias = mode === 'autoUseTopicAlias' && number < maximum && { topicAlias: number + 1 };
        await publisher.publish(name, name, { qos: 1, ...(alias && { properties: alias }) });
      }
      const got = await subscriber.receive(sent.length);
      assert.deepEqual(got.map((message) => [message.topic, message.text]), sent.map((name) => [name, name]));
      assert.ok(got.every(({ properties }) => properties?.topicAlias === undefined), '[MQTT5-3.1.2-27]');
    });
  });
}

// [MQTT5-3.1.2-26] [MQTT5-3.3.2-11]: MQTT.js resolves them, and fails on one above its maximum.
test('topic aliases from the server resolve', async () => {
  const topic = unique();
  const aliasing = connect(unique(), { properties: { topicAliasMaximum: 4 } });
  await withPeers([aliasing, connect(unique())], async (subscriber, publisher) => {
    await subscriber.subscribe(`${topic}/#`, { qos: 1 });
    const sent = numbers(100).map((number) => `${topic}/${number % 7}`);
    for (const name of sent) await publisher.publish(name, name, { qos: 1 });
    const got = await subscriber.receive(sent.length);
    assert.deepEqual(got.map((message) => [message.topic, message.text]), sent.map((name) => [name, name]));
  });
});

// [MQTT5-3.3.4-3] [MQTT5-3.3.4-4] [MQTT5-3.3.4-5]
test('subscription identifiers come with the message', async () => {
  const topic = unique();
  await withPeers([connect(unique())], async (peer) => {
    await peer.subscribe(`${topic}/a`, { qos: 1, properties: { subscriptionIdentifier: 1 } });
    await peer.subscribe(`${topic}/+`, { qos: 1, properties: { subscriptionIdentifier: 200 } });
    await peer.subscribe(`${topic}-end`, { qos: 1 });
    await peer.publish(`${topic}/a`, 'x', { qos: 1 });
    await peer.publish(`${topic}-end`, 'end', { qos: 1 });
    const copies = await peer.receiveUntil('end');
    const identifiers = copies.flatMap(({ properties }) => properties.subscriptionIdentifier);
    assert.deepEqual(identifiers.sort(), [1, 200]);
  });
});

// [MQTT5-3.8.3-3] [MQTT5-3.3.1-13]
test('no local, and retain as published', async () => {
  const topic = unique();
  await withPeers([connect(unique()), connect(unique())], async (peer, other) => {
    await peer.subscribe(topic, { qos: 1, nl: true, rap: true });
    await peer.publish(topic, 'own', { qos: 1 });
    await other.publish(topic, 'theirs', { qos: 1, retain: true });
    const { text, retain } = await peer.next();
    assert.deepEqual({ text, retain }, { text: 'theirs', retain: true });
    await other.publish(topic, '', { qos: 1, retain: true });
  });
});

for (const [rh, counts] of [[1, 1], [1, 0], [0, 0]].entries()) {
  // [MQTT5-3.3.1-9] [MQTT5-3.3.1-10] [MQTT5-3.3.1-11]
  test(`retain handling ${rh}, on a new subscription and on the same again`, async () => {
    const topic = unique();
    await withPeers([connect(unique())], async (peer) => {
      await peer.publish(topic, 'kept', { qos: 1, retain: true });
      for (const count of counts) {
        await peer.subscribe(topic, { qos: 1, rh });
        await peer.publish(topic, 'end', { qos: 1 });
        assert.equal((await peer.receiveUntil('end')).length, count);
      }
      await peer.publish(topic, '', { qos: 1, retain: true });
      await peer.next();
    });
  });
}

for (const qos of [1, 2]) {
  for (const receiveMaximum of [1, 3]) {
    // [MQTT5-3.3.4-9]: MQTT.js fails if there are more QoS 2 messages in flight than it allowed.
    test(`a client that acknowledges slowly gets everything: QoS ${qos}, receive maximum ${receiveMaximum}`, async () => {
      const topic = unique();
      const sent = numbers(60);
      const slow = connect(unique(), {
        properties: { receiveMaximum },
        customHandleAcks: (_topic, _payload, packet, done) => (packet.qos ? setImmediate(done, 0) : done(0)),
      });
      await withPeers([slow, connect(unique())], async (subscriber, publisher) => {
        await subscriber.subscribe(topic, { qos });
        await publisher.publishAll(topic, sent, { qos });
        assert.deepEqual((await subscriber.receive(sent.length)).map(({ text }) => text), sent);
        await publisher.publish(topic, 'end', { qos });
        assert.deepEqual(await subscriber.receiveUntil('end'), []);
      });
    });
  }

  // [MQTT5-4.4.0-2]: a refused message counts as acknowledged, and is not sent again on the next connection.
  test(`a refused message does not come again: QoS ${qos}`, async () => {
    const [id, topic] = [unique(), unique()];
    const refused = new Queue();
    const refusing = await connect(id, {
      clean: false,
      properties: { sessionExpiryInterval: 100, receiveMaximum: 1 },
      customHandleAcks: (_topic, payload, _packet, done) => {
        refused.put(payload.toString());
        done(0x83);
      },
    });
    await refusing.subscribe(topic, { qos });
    await withPeers([connect(unique())], async (publisher) => {
      for (const text of ['one', 'two']) await publisher.publish(topic, text, { qos });
    });
    // The second arrives only when the first is settled; the response to the request below follows both.
    assert.deepEqual([await refused.next('message'), await refused.next('message')], ['one', 'two']);
    await refusing.unsubscribe(topic);
    await refusing.cut();
    const again = await connect(id, { clean: false });
    assert.equal(again.connack.sessionPresent, true);
    await again.subscribe(topic, { qos });
    await again.publish(topic, 'end', { qos });
    assert.deepEqual(await again.receiveUntil('end'), []);
    await again.leave();
  });
}

// [MQTT5-3.1.2-24] [MQTT5-3.1.2-25]
test('a client states the largest packet it takes', async () => {
  const topic = unique();
  await withPeers([connect(unique(), { properties: { maximumPacketSize: 500 } }), connect(unique())], async (small, other) => {
    await small.subscribe(topic, { qos: 1 });
    for (const payload of [Buffer.alloc(1000), 'fits', 'end']) await other.publish(topic, payload, { qos: 1 });
    assert.deepEqual((await small.receiveUntil('end')).map(({ text }) => text), ['fits']);
  });
});
