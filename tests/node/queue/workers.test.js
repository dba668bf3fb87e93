// MQTT.js workers: the client's customHandleAcks settles each message.

import assert from 'node:assert/strict';
import { afterEach, test } from 'node:test';
import { sharedBroker } from '../broker.js';
import { Peer, Queue, numbers, unique, withPeers } from '../peer.js';

const DONE = 0x00;
const NOBODY_THERE = 0x10;
const FAILED = 0x80;
const REJECTED = [0x83, 0x99];

const broker = sharedBroker();
const connected = [];
afterEach(async () => {
  await Promise.all(connected.splice(0).map((worker) => worker.end()));
});

/**
 * A worker that collects its messages in `taken`, each with a function `settle(code)`. MQTT.js delivers the next message
 * when the previous one is settled.
 */
class Worker {
  static async on(queue, { taken = new Queue(), group, ...options } = {}) {
    const worker = new Worker();
    worker.taken = taken;
    const take = (packet, settle) => {
      taken.put({ packet, text: packet.payload.toString(), told: packet.properties?.userProperties ?? {}, settle });
    };
    const customHandleAcks = (topic, payload, packet, settle) => take(packet, settle);
    worker.peer = await Peer.connect(broker, unique(), { customHandleAcks, ...options });
    // Before version 5, PUBACK has no reason code: it always acknowledges.
    if (options.protocolVersion === 4) worker.peer.client.handleMessage = (packet, done) => take(packet, () => done());
    connected.push(worker);
    const subscription = group ? `$share/${group}/$queue/${queue}` : `$queue/${queue}`;
    assert.equal(await worker.peer.subscribe(subscription, { qos: 1 }), 1);
    return worker;
  }

  next() {
    return this.taken.next('message of the queue');
  }

  /** Settles `count` messages with `disposition(message)`. */
  async work(count, disposition) {
    const got = [];
    while (got.length < count) {
      const message = await this.next();
      got.push(message);
      message.settle(disposition(message));
    }
    return got;
  }

  async end() {
    await this.peer.client.endAsync(true);
  }
}

const count = (message) => Number(message.told['delivery-count']);

/** Sends texts to a queue. */
async function send(queue, texts, userProperties) {
  const options = { qos: 1, properties: userProperties && { userProperties } };
  await withPeers([Peer.connect(broker, unique())], (sender) => sender.publishAll(`$queue/${queue}`, texts, options));
}

test('both success codes acknowledge', async () => {
  for (const code of [DONE, NOBODY_THERE]) {
    const queue = unique();
    const worker = await Worker.on(queue);
    await send(queue, numbers(30));
    const got = await worker.work(30, () => code);
    assert.deepEqual(got.map((message) => message.text), numbers(30));
    // Messages settled before it left are not redelivered.
    await worker.peer.client.endAsync();
    const next = await Worker.on(queue);
    await send(queue, ['end']);
    const last = await next.next();
    assert.deepEqual([last.text, count(last)], ['end', 1]);
  }
});

test('a failed message is redelivered with its count', async () => {
  const queue = unique();
  const worker = await Worker.on(queue);
  await send(queue, ['x']);
  const began = performance.now();
  const [first] = await worker.work(1, () => FAILED);
  const [again] = await worker.work(1, () => DONE);
  assert.deepEqual([again.text, count(again), again.packet.dup], ['x', 2, false]);
  assert.equal(again.told['first-delivered-at'], first.told['first-delivered-at']);
  // The queue's backoff is one second, 20 percent of it random.
  assert.ok(performance.now() - began >= 800);
});

test('a rejected message becomes a dead letter', async () => {
  for (const code of REJECTED) {
    const queue = unique();
    const worker = await Worker.on(queue);
    const undertaker = await Worker.on(`${queue}.dead`);
    await send(queue, ['broken'], { site: 'north' });
    await worker.work(1, () => code);
    const [letter] = await undertaker.work(1, () => DONE);
    assert.equal(letter.text, 'broken');
    const { 'dead-letter-reason': reason, 'dead-letter-queue': from, site } = letter.told;
    assert.deepEqual([reason, from, site], ['rejected', queue, 'north']);
  }
});

test('workers compete, groups do not', async () => {
  const queue = unique();
  // One message at a time per worker, so that each gets some.
  const few = { properties: { receiveMaximum: 1 } };
  const workers = await Promise.all([1, 2, 3].map(() => Worker.on(queue, few)));
  const auditor = await Worker.on(queue, { group: 'audit' });
  await send(queue, numbers(30));
  const audited = await auditor.work(30, () => DONE);
  assert.deepEqual(audited.map((message) => message.text), numbers(30));
  assert.ok(audited.every((message) => message.told.group === 'audit'));
  const got = [];
  for (let round = 0; round < 10; round += 1) {
    for (const worker of workers) got.push(...(await worker.work(1, () => DONE)));
  }
  assert.deepEqual(got.map((message) => message.text).sort(), numbers(30).sort());
});

test('a lost connection returns messages at once', async () => {
  const queue = unique();
  const worker = await Worker.on(queue);
  await send(queue, numbers(5));
  assert.equal((await worker.next()).text, '0');
  await worker.peer.cut();
  const other = await Worker.on(queue);
  const got = await other.work(5, () => DONE);
  assert.deepEqual(got.map((message) => message.text).sort(), numbers(5));
  assert.deepEqual([...new Set(got.map(count))], [2]);
});

test('priorities, delays and duplicates', async () => {
  const queue = unique();
  await withPeers([Peer.connect(broker, unique())], async (sender) => {
    const publish = (text, userProperties) =>
      sender.publish(`$queue/${queue}`, text, { qos: 1, properties: userProperties && { userProperties } });
    await publish('late', { 'delay-ms': '1000' });
    await publish('plain');
    await publish('urgent', { priority: '9' });
    await publish('once', { 'dedup-id': 'a' });
    await publish('twice', { 'dedup-id': 'a' });
  });
  const worker = await Worker.on(queue);
  const got = await worker.work(4, () => DONE);
  assert.deepEqual(got.map((message) => message.text), ['urgent', 'plain', 'once', 'late']);
});

test('messages of a key are delivered one by one, to any worker', async () => {
  const queue = unique();
  const taken = new Queue();
  await Promise.all([Worker.on(queue, { taken }), Worker.on(queue, { taken })]);
  await withPeers([Peer.connect(broker, unique())], (sender) => sender.publishAll(`$queue/${queue}/cat`, numbers(20), { qos: 1 }));
  for (const text of numbers(20)) {
    const message = await taken.next('message of the queue');
    assert.equal(message.text, text);
    assert.ok(taken.empty, 'the next one waits until this one is settled');
    message.settle(DONE);
  }
});

test('a subscription at QoS 0 or to more than one queue is refused', async () => {
  await withPeers([Peer.connect(broker, unique())], async (peer) => {
    for (const [subscription, qos, code] of [['$queue/jobs', 0, 0x83], ['$queue/+', 1, 0x8f], ['$queue/jobs/key', 1, 0x8f]]) {
      const granted = await new Promise((resolve) => {
        peer.client.subscribe(subscription, { qos }, (error, each, suback) => resolve(suback.granted));
      });
      assert.deepEqual(granted, [code], subscription);
    }
  });
});

test('3.1.1: acknowledged messages are settled, others are redelivered', async () => {
  const queue = unique();
  const first = await Worker.on(queue, { protocolVersion: 4 });
  await send(queue, ['a']);
  await first.work(1, () => DONE);
  // The response shows that the broker has read the acknowledgement before it.
  await first.peer.publish(`$queue/${queue}`, 'b', { qos: 1 });
  assert.equal((await first.next()).text, 'b');
  await first.peer.cut();
  const second = await Worker.on(queue, { protocolVersion: 4 });
  assert.deepEqual((await second.work(1, () => DONE)).map((message) => message.text), ['b']);
});
