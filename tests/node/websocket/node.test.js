// MQTT.js over WebSocket in Node.js, which uses the package `ws`.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import mqtt from 'mqtt';
import { NAMES, VERSIONS, numbers, unique } from '../peer.js';
import { webSocketBroker } from './broker.js';

const broker = webSocketBroker();

const connect = (listener, protocolVersion) => mqtt.connectAsync(broker[listener], {
  protocolVersion,
  protocolId: protocolVersion === 3 ? 'MQIsdp' : 'MQTT',
  clientId: unique(),
  reconnectPeriod: 0,
  ca: readFileSync(broker.ca),
});

for (const listener of ['ws', 'wss']) {
  for (const version of VERSIONS) {
    // [MQTT5-6.0.0-4] [MQTT3-6.0.0-4]
    test(`messages of ${NAMES[version]} over ${listener}`, async () => {
      const [receiver, sender] = await Promise.all([connect(listener, version), connect(listener, version)]);
      const topic = unique();
      const payloads = [...numbers(500), 'x'.repeat(9_000), 'y'.repeat(70_000), 'z'.repeat(1_000_000)];
      const received = new Promise((resolve) => {
        const got = [];
        receiver.on('message', (_topic, payload) => {
          if (got.push(payload.toString()) === payloads.length) resolve(got);
        });
      });
      await receiver.subscribeAsync(topic, { qos: 1 });
      for (const payload of payloads) await sender.publishAsync(topic, payload, { qos: 1 });
      assert.deepEqual(await received, payloads);
      await Promise.all([receiver.endAsync(), sender.endAsync()]);
    });
  }
}

test('an origin decides whether a page may connect', async () => {
  const from = (origin) => mqtt.connectAsync(broker.ws, { reconnectPeriod: 0, wsOptions: { origin } }, false);
  await (await from('http://localhost:3000')).endAsync();
  await assert.rejects(from('http://evil.example'));
});
