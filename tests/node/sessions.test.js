// MQTT.js: sessions, wills, keep alive, take-over.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sharedBroker } from './broker.js';
import { NAMES, Peer, VERSIONS, letPass, numbers, unique, withPeers } from './peer.js';

const broker = sharedBroker();
const connect = (clientId, options) => Peer.connect(broker, clientId, options);

/** Options of a session that outlives its connection. */
const durable = (protocolVersion, sessionExpiryInterval = 1000) => ({
  protocolVersion,
  clean: false,
  ...(protocolVersion === 5 && { properties: { sessionExpiryInterval } }),
});

const willOf = (topic, more) => ({ will: { topic: `${topic}/will`, payload: Buffer.from('gone'), qos: 1, ...more } });

for (const protocolVersion of VERSIONS) {
  const version = { protocolVersion };
  const name = `version ${NAMES[protocolVersion]}`;

  // [MQTT3-3.1.2-5] [MQTT3-3.2.2-2] [MQTT5-3.1.2-5] [MQTT5-3.2.2-3] [MQTT5-4.5.0-1]
  test(`messages wait for an absent client: ${name}`, async () => {
    const [id, topic] = [unique(), unique()];
    const first = await connect(id, durable(protocolVersion));
    assert.equal(first.connack.sessionPresent, false);
    await first.subscribe(topic, { qos: 2 });
    await first.cut();
    await withPeers([connect(unique(), version)], async (publisher) => {
      const sent = numbers(200);
      for (const [number, text] of sent.entries()) await publisher.publish(topic, text, { qos: 1 + (number % 2) });
      const second = await connect(id, durable(protocolVersion));
      assert.equal(second.connack.sessionPresent, protocolVersion > 3);
      const got = await second.receive(sent.length);
      for (const qos of [1, 2]) {
        const texts = got.filter((message) => message.qos === qos).map(({ text }) => text);
        assert.deepEqual(texts, sent.filter((_, number) => 1 + (number % 2) === qos));
      }
      await publisher.publish(topic, 'end', { qos: 2 });
      assert.deepEqual(await second.receiveUntil('end'), []);
      await second.leave();
    });
    await withPeers([connect(id, version)], (third) => assert.equal(third.connack.sessionPresent, false));
  });

  // [MQTT3-3.1.2-8] [MQTT5-3.1.2-8]; [MQTT3-3.14.4-3] [MQTT5-3.14.4-3] no will after a normal DISCONNECT.
  test(`a lost connection leaves a will, a normal end does not: ${name}`, async () => {
    const [id, topic] = [unique(), unique()];
    await withPeers([connect(unique(), version)], async (watcher) => {
      await watcher.subscribe(`${topic}/will`, { qos: 1 });
      await (await connect(id, { ...version, ...willOf(topic) })).leave();
      // The same client identifier again: its CONNACK shows that the server has closed the old connection.
      await withPeers([connect(id, version)], (again) => again.publish(`${topic}/will`, 'first', { qos: 1 }));
      await (await connect(unique(), { ...version, ...willOf(topic) })).cut();
      assert.deepEqual((await watcher.receive(2)).map(({ text }) => text), ['first', 'gone']);
    });
  });

  // [MQTT3-3.1.2-17] [MQTT5-3.1.2-15]
  test(`a retained will is kept: ${name}`, async () => {
    const topic = unique();
    await withPeers([connect(unique(), version), connect(unique(), version)], async (watcher, late) => {
      await watcher.subscribe(`${topic}/will`, { qos: 1 });
      await (await connect(unique(), { ...version, ...willOf(topic, { retain: true }) })).cut();
      await watcher.next();
      await late.subscribe(`${topic}/will`, { qos: 1 });
      const { text, retain } = await late.next();
      assert.deepEqual({ text, retain }, { text: 'gone', retain: true });
      await watcher.publish(`${topic}/will`, '', { qos: 1, retain: true });
    });
  });

  // [MQTT3-3.1.4-2] [MQTT5-3.1.4-3]: on version 5 with 0x8E.
  test(`a second connection takes over: ${name}`, async () => {
    const id = unique();
    const first = await connect(id, version);
    await withPeers([connect(id, version)], async (second) => {
      if (protocolVersion === 5) assert.equal((await first.disconnects.next('DISCONNECT')).reasonCode, 0x8e);
      await first.closed.next('close');
      const topic = unique();
      await second.subscribe(topic, { qos: 1 });
      await second.publish(topic, 'mine now', { qos: 1 });
      assert.equal((await second.next()).text, 'mine now');
    });
    await first.leave();
  });

  // [MQTT3-3.12.4-1] [MQTT5-3.12.4-1]: MQTT.js closes the connection if no PINGRESP comes.
  test(`pings keep an idle connection: ${name}`, async () => {
    await withPeers([connect(unique(), { ...version, keepalive: 1 })], async (idle) => {
      await letPass(2200);
      assert.ok(idle.client.connected && idle.closed.empty);
    });
  });
}

// DISCONNECT with reason 0x04 (MQTT 5, 3.14.2.1).
test('disconnect with will message publishes it', async () => {
  const topic = unique();
  await withPeers([connect(unique())], async (watcher) => {
    await watcher.subscribe(`${topic}/will`, { qos: 1 });
    await (await connect(unique(), willOf(topic))).leave({ reasonCode: 4 });
    assert.equal((await watcher.next()).text, 'gone');
  });
});

// [MQTT5-3.1.2-8] [MQTT5-3.1.3-9] [MQTT5-3.1.3-10]
test('a will waits for its delay, and is cancelled by a return', async () => {
  const [id, topic] = [unique(), unique()];
  const userProperties = { b: '1', a: ['2', '3'] };
  const delayed = (payload, willDelayInterval) => ({
    properties: { sessionExpiryInterval: 100 },
    ...willOf(topic, { payload: Buffer.from(payload), properties: { willDelayInterval, userProperties } }),
  });
  await withPeers([connect(unique())], async (watcher) => {
    await watcher.subscribe(`${topic}/will`, { qos: 1 });
    await (await connect(id, delayed('cancelled', 1))).cut();
    const again = await connect(id, { clean: false, properties: { sessionExpiryInterval: 100 } });
    assert.equal(again.connack.sessionPresent, true);
    const start = performance.now();
    await (await connect(unique(), delayed('late', 2))).cut();
    await watcher.publish(`${topic}/will`, 'first', { qos: 1 });
    const [first, late] = await watcher.receive(2);
    assert.deepEqual([first.text, late.text], ['first', 'late']);
    assert.deepEqual({ ...late.properties.userProperties }, userProperties);
    const waited = performance.now() - start;
    assert.ok(waited > 1500 && waited < 5000, `${waited} ms`);
    await again.leave({ properties: { sessionExpiryInterval: 0 } });
  });
});

// [MQTT5-4.1.0-2] [MQTT5-3.1.2-23]; DISCONNECT can change the interval (MQTT 5, 3.14.2.2.2).
test('sessions expire', async () => {
  const [short, long, dropped] = [unique(), unique(), unique()];
  await withPeers([connect(short, durable(5, 1)), connect(long, durable(5))], () => {});
  await (await connect(dropped, durable(5))).leave({ properties: { sessionExpiryInterval: 0 } });
  await letPass(2500);
  await withPeers([short, long, dropped].map((id) => connect(id, durable(5, 0))), (...peers) => {
    assert.deepEqual(peers.map(({ connack }) => connack.sessionPresent), [false, true, false]);
  });
});

// [MQTT5-3.3.2-5] [MQTT5-3.3.2-6]
test('queued messages expire', async () => {
  const [id, topic] = [unique(), unique()];
  await withPeers([connect(id, durable(5))], (first) => first.subscribe(topic, { qos: 1 }));
  await withPeers([connect(unique())], async (publisher) => {
    await publisher.publish(topic, 'short', { qos: 1, properties: { messageExpiryInterval: 1 } });
    await publisher.publish(topic, 'long', { qos: 1, properties: { messageExpiryInterval: 100 } });
    await letPass(2100);
    await publisher.publish(topic, 'end', { qos: 1 });
  });
  const second = await connect(id, durable(5));
  const [long, ...rest] = await second.receiveUntil('end');
  assert.deepEqual([long.text, rest], ['long', []]);
  const left = long.properties.messageExpiryInterval;
  assert.ok(left >= 90 && left <= 98, `${left} s left`);
  await second.leave({ properties: { sessionExpiryInterval: 0 } });
});
