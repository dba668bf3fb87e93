// MQTT.js: connecting, the three qualities of service, order, large messages, retained messages, groups.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sharedBroker } from './broker.js';
import { NAMES, Peer, Queue, VERSIONS, numbers, unique, withPeers } from './peer.js';

const broker = sharedBroker();
const connect = (clientId, options) => Peer.connect(broker, clientId, options);

for (const protocolVersion of VERSIONS) {
  const version = { protocolVersion };
  const name = `version ${NAMES[protocolVersion]}`;

  // [MQTT3-3.2.2-1] [MQTT5-3.1.4-5] [MQTT5-3.2.2-2]
  test(`connects and leaves: ${name}`, async () => {
    await withPeers([connect(unique(), version)], (peer) => {
      assert.equal(peer.connack.sessionPresent, false);
    });
  });

  for (const qos of [0, 1, 2]) {
    // [MQTT3-4.6.0-6] [MQTT5-4.6.0-5] [MQTT3-4.3.3-2] [MQTT5-4.3.3-10]
    test(`a run of messages arrives once and in order: ${name}, QoS ${qos}`, async () => {
      const topic = unique();
      const sent = numbers(300);
      await withPeers([connect(unique(), version), connect(unique(), version)], async (subscriber, publisher) => {
        assert.equal(await subscriber.subscribe(topic, { qos }), qos);
        const acknowledged = publisher.publishAll(topic, sent, { qos });
        const got = await subscriber.receive(sent.length);
        assert.deepEqual(got.map(({ text }) => text), sent);
        assert.ok(got.every((message) => message.qos === qos && !message.dup && !message.retain));
        await acknowledged;
        await publisher.publish(topic, 'end', { qos });
        assert.deepEqual(await subscriber.receiveUntil('end'), []);
      });
    });

    test(`a large message arrives whole: ${name}, QoS ${qos}`, async () => {
      const topic = unique();
      const payload = Buffer.alloc(3_000_000, 'the quick brown fox ');
      await withPeers([connect(unique(), version)], async (peer) => {
        await peer.subscribe(topic, { qos });
        await peer.publish(topic, payload, { qos });
        assert.ok(payload.equals((await peer.next()).payload));
      });
    });
  }

  // [MQTT3-3.8.4-6] [MQTT5-3.8.4-8]
  test(`the lower quality of service wins: ${name}`, async () => {
    const topic = unique();
    const clients = [0, 1, 2].map(() => connect(unique(), version));
    await withPeers([...clients, connect(unique(), version)], async (zero, one, two, publisher) => {
      for (const [qos, peer] of [zero, one, two].entries()) await peer.subscribe(topic, { qos });
      for (const qos of [0, 1, 2]) {
        await publisher.publish(topic, `${qos}`, { qos });
        for (const [granted, peer] of [zero, one, two].entries()) {
          assert.equal((await peer.next()).qos, Math.min(granted, qos));
        }
      }
    });
  });

  // [MQTT3-3.3.1-6] [MQTT3-3.3.1-8] [MQTT3-3.3.1-9] [MQTT3-3.3.1-10] [MQTT5-3.3.1-5] [MQTT5-3.3.1-6] [MQTT5-3.3.1-9]
  test(`a retained message is kept, replaced and cleared: ${name}`, async () => {
    const topic = unique();
    await withPeers([connect(unique(), version), connect(unique(), version)], async (publisher, live) => {
      await live.subscribe(topic, { qos: 1 });
      for (const text of ['first', 'second']) {
        await publisher.publish(topic, text, { qos: 1, retain: true });
        assert.equal((await live.next()).retain, false);
      }
      const retained = async () => {
        const got = [];
        await withPeers([connect(unique(), version)], async (late) => {
          await late.subscribe(topic, { qos: 1 });
          await late.publish(topic, 'end', { qos: 1 });
          for (const { text, retain } of await late.receiveUntil('end')) got.push([text, retain]);
        });
        assert.deepEqual(await live.receiveUntil('end'), []);
        return got;
      };
      assert.deepEqual(await retained(), [['second', true]]);
      await publisher.publish(topic, '', { qos: 1, retain: true });
      assert.equal((await live.next()).text, '');
      assert.deepEqual(await retained(), []);
    });
  });

  // [MQTT3-3.10.4-1] [MQTT3-3.10.4-2] [MQTT5-3.10.4-1] [MQTT5-3.10.4-2]
  test(`an unsubscribed client gets no more: ${name}`, async () => {
    const topic = unique();
    await withPeers([connect(unique(), version)], async (peer) => {
      await peer.subscribe(`${topic}/+`, { qos: 1 });
      await peer.subscribe(`${topic}/a/#`, { qos: 1 });
      await peer.unsubscribe(`${topic}/+`);
      await peer.publish(`${topic}/b`, 'unheard', { qos: 1 });
      await peer.publish(`${topic}/a/b`, 'end', { qos: 1 });
      assert.deepEqual(await peer.receiveUntil('end'), []);
    });
  });

  // MQTT 5, 4.8.2: each message to one member, and some to each. One member leaves halfway.
  test(`a group gets every message once, also when a member leaves: ${name}`, async () => {
    const topic = unique();
    const sent = numbers(120);
    await withPeers([1, 2, 3, 4].map(() => connect(unique(), version)), async (publisher, ...members) => {
      const shares = members.map(() => []);
      const arrived = new Queue();
      for (const [number, member] of members.entries()) {
        member.client.on('message', (_, payload) => arrived.put([number, payload.toString()]));
        await member.subscribe(`$share/group/${topic}`, { qos: 2 });
      }
      const take = async (count) => {
        for (let taken = 0; taken < count; taken += 1) {
          const [number, text] = await arrived.next('message of the group');
          shares[number].push(text);
        }
      };
      await publisher.publishAll(topic, sent.slice(0, 60), { qos: 2 });
      await take(60);
      await members[0].unsubscribe(`$share/group/${topic}`);
      const first = shares[0].length;
      await publisher.publishAll(topic, sent.slice(60), { qos: 2 });
      await take(60);
      assert.deepEqual(shares.flat().sort(), [...sent].sort());
      assert.ok(shares.every((share) => share.length > 0), `spread ${shares.map((share) => share.length)}`);
      assert.equal(shares[0].length, first);
    });
  });
}

// [MQTT3-4.7.2-1] [MQTT5-4.7.2-1]
test('system topics are readable and hidden from wildcards', async () => {
  await withPeers([connect(unique()), connect(unique())], async (system, everything) => {
    await everything.subscribe('#');
    await system.subscribe('$SYS/#');
    let message;
    do message = await system.next(); while (message.retain);
    assert.match(message.topic, /^\$SYS\//);
    const end = unique();
    await system.publish(unique(), end);
    const seen = await everything.receiveUntil(end);
    assert.deepEqual(seen.filter(({ topic }) => topic.startsWith('$')), []);
  });
});

// [MQTT5-3.1.3-6] [MQTT5-3.1.3-7] [MQTT5-3.2.2-16]
test('an empty client identifier is answered with an assigned one', async () => {
  await withPeers([connect(''), connect('')], (first, second) => {
    const assigned = [first, second].map(({ connack }) => connack.properties.assignedClientIdentifier);
    assert.ok(assigned.every(Boolean));
    assert.notEqual(...assigned);
  });
});
