// kafkajs: a client with its own implementation of the protocol.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { test } from 'node:test';
import kafkajs from 'kafkajs';
import snappy from 'kafkajs-snappy';
import { sharedBroker } from '../broker.js';

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, PartitionAssigners, logLevel } = kafkajs;
CompressionCodecs[CompressionTypes.Snappy] = snappy;

const broker = sharedBroker('kafka');
const DEADLINE_MS = 30_000;

const unique = () => `t-${randomUUID()}`;
const numbers = (count, prefix = '') => Array.from({ length: count }, (_, number) => `${prefix}${number}`);
const messages = (values, partition) => values.map((value) => ({ value, partition }));

function client() {
  const retry = { initialRetryTime: 50, retries: 8 };
  return new Kafka({ brokers: [`${broker.host}:${broker.port}`], logLevel: logLevel.NOTHING, retry });
}

/** Runs `body` with connected clients and always disconnects them. */
async function connected(clients, run) {
  try {
    await Promise.all(clients.map((each) => each.connect()));
    return await run(...clients);
  } finally {
    await Promise.all(clients.map((each) => each.disconnect()));
  }
}

async function makeTopic(numPartitions = 1, configEntries = []) {
  const topic = unique();
  await connected([client().admin()], (admin) => admin.createTopics({ topics: [{ topic, numPartitions, configEntries }] }));
  return topic;
}

async function until(condition, what) {
  const deadline = Date.now() + DEADLINE_MS;
  while (!condition()) {
    assert.ok(Date.now() < deadline, `not within ${DEADLINE_MS} ms: ${what()}`);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

const member = (groupId, options) => client().consumer({
  groupId, heartbeatInterval: 300, sessionTimeout: 10_000, maxWaitTimeInMs: 500, rebalanceTimeout: 5_000, ...options,
});

/** Reads the first `count` messages of a topic, with a new group or the given one. */
async function read(topic, count, { groupId = unique(), ...options } = {}) {
  const got = [];
  await connected([member(groupId, options)], async (consumer) => {
    await consumer.subscribe({ topic, fromBeginning: true });
    await consumer.run({ eachMessage: async ({ partition, message }) => void got.push({ partition, ...message }) });
    await until(() => got.length >= count, () => `${count} messages, there are ${got.length}`);
  });
  return got;
}

const texts = (got) => got.map(({ value }) => value?.toString() ?? null);

for (const acks of [0, 1, -1]) {
  test(`what is produced is consumed: acks ${acks}`, async () => {
    const topic = await makeTopic();
    const sent = numbers(500);
    await connected([client().producer()], (producer) => producer.send({ topic, acks, messages: messages(sent) }));
    const got = await read(topic, 500);
    assert.deepEqual(texts(got), sent);
    assert.deepEqual(got.map(({ offset }) => offset), sent);
  });
}

for (const [name, compression] of Object.entries({ gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy })) {
  test(`a compressed batch: ${name}`, async () => {
    const topic = await makeTopic();
    const sent = numbers(500, 'compressible '.repeat(10));
    await connected([client().producer()], (producer) => producer.send({ topic, compression, messages: messages(sent) }));
    assert.deepEqual(texts(await read(topic, 500)), sent);
  });
}

test('key, headers, timestamp and null come back', async () => {
  const topic = await makeTopic();
  await connected([client().producer()], (producer) => producer.send({
    topic,
    messages: [
      { key: 'key', value: 'value', headers: { a: ['1', '2'], b: 'x' }, timestamp: '1600000000123' },
      { key: 'tombstone', value: null },
    ],
  }));
  const [first, second] = await read(topic, 2);
  assert.equal(first.key.toString(), 'key');
  assert.deepEqual(first.headers.a.map(String), ['1', '2']);
  assert.equal(String(first.headers.b), 'x');
  assert.equal(first.timestamp, '1600000000123');
  assert.equal(second.key.toString(), 'tombstone');
  assert.equal(second.value, null);
});

test('a large message', async () => {
  const topic = await makeTopic();
  const value = 'x'.repeat(900_000);
  await connected([client().producer()], (producer) => producer.send({ topic, messages: [{ value }] }));
  assert.deepEqual(texts(await read(topic, 1)), [value]);
});

test('an idempotent producer', async () => {
  const topic = await makeTopic();
  await connected([client().producer({ idempotent: true, maxInFlightRequests: 1 })], async (producer) => {
    for (let batch = 0; batch < 20; batch++) {
      await producer.send({ topic, messages: messages(numbers(50, `${batch}-`)) });
    }
  });
  const expected = numbers(20).flatMap((batch) => numbers(50, `${batch}-`));
  assert.deepEqual(texts(await read(topic, 1000)), expected);
});

test('no record is missed while members join and leave', async () => {
  const topic = await makeTopic(4);
  const groupId = unique();
  const seen = new Set();
  const owned = new Map();
  const join = async () => {
    const consumer = member(groupId, { partitionAssigners: [PartitionAssigners.roundRobin] });
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      owned.set(consumer, payload.memberAssignment[topic]?.length ?? 0);
    });
    await consumer.connect();
    await consumer.subscribe({ topic, fromBeginning: true });
    await consumer.run({ eachMessage: async ({ message }) => void seen.add(message.value.toString()) });
    return consumer;
  };
  const shares = () => [...owned.values()];
  await connected([client().producer()], async (producer) => {
    const send = (prefix) => Promise.all(numbers(4).map((partition) => producer.send({
      topic, messages: messages(numbers(50, `${prefix}-${partition}-`), Number(partition)),
    })));
    const consumers = [await join()];
    try {
      await send('a');
      await until(() => `${shares()}` === '4', () => `all partitions, there are ${shares()}`);
      consumers.push(await join());
      await until(() => `${shares()}` === '2,2', () => `half each, there are ${shares()}`);
      await send('b');
      const leaver = consumers.shift();
      await leaver.disconnect();
      owned.delete(leaver);
      await until(() => `${shares()}` === '4', () => `all that the other had, there are ${shares()}`);
      await send('c');
      await until(() => seen.size === 600, () => `600 messages, there are ${seen.size}`);
    } finally {
      await Promise.all(consumers.map((consumer) => consumer.disconnect()));
    }
  });
});

test('a group continues where it was', async () => {
  const topic = await makeTopic();
  const groupId = unique();
  await connected([client().producer()], async (producer) => {
    await producer.send({ topic, messages: messages(numbers(10)) });
    assert.deepEqual(texts(await read(topic, 10, { groupId })), numbers(10));
    await producer.send({ topic, messages: messages(['more']) });
  });
  assert.deepEqual(texts(await read(topic, 1, { groupId })), ['more']);
});

test('transactions', async () => {
  const [source, sink] = [await makeTopic(), await makeTopic()];
  const groupId = unique();
  const options = { transactionalId: unique(), idempotent: true, maxInFlightRequests: 1 };
  await connected([client().producer(options), client().producer(), client().admin()], async (producer, plain, admin) => {
    await plain.send({ topic: source, messages: messages(numbers(10)) });
    for (const end of ['abort', 'commit']) {
      const transaction = await producer.transaction();
      await transaction.send({ topic: sink, messages: messages(numbers(10, `${end} `)) });
      const partitions = [{ partition: 0, offset: '10' }];
      await transaction.sendOffsets({ consumerGroupId: groupId, topics: [{ topic: source, partitions }] });
      await transaction[end]();
    }
    await plain.send({ topic: sink, messages: messages(['end']) });
    const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [source] });
    assert.equal(partitions[0].offset, '10');
  });
  assert.deepEqual(texts(await read(sink, 11, { readUncommitted: false })), [...numbers(10, 'commit '), 'end']);
  assert.equal((await read(sink, 21, { readUncommitted: true })).length, 21);
});

test('administration', async () => {
  await connected([client().admin(), client().producer()], async (admin, producer) => {
    const topic = await makeTopic(2, [{ name: 'retention.ms', value: '3600000' }]);
    assert.ok((await admin.listTopics()).includes(topic));
    const { brokers, controller } = await admin.describeCluster();
    assert.deepEqual(brokers.map(({ nodeId, port }) => ({ nodeId, port })), [{ nodeId: controller, port: broker.port }]);
    await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
    assert.equal(topics[0].partitions.length, 3);
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
    const configs = await admin.describeConfigs({ resources: [{ ...resource, configNames: ['retention.ms'] }] });
    assert.equal(configs.resources[0].configEntries[0].configValue, '3600000');
    await producer.send({ topic, messages: messages(numbers(10), 0) });
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] });
    const offsets = await admin.fetchTopicOffsets(topic);
    const first = offsets.find(({ partition }) => partition === 0);
    assert.deepEqual([first.low, first.high], ['4', '10']);
    const groupId = unique();
    await read(topic, 6, { groupId });
    assert.ok((await admin.listGroups()).groups.some((group) => group.groupId === groupId));
    assert.equal((await admin.describeGroups([groupId])).groups[0].state, 'Empty');
    await admin.resetOffsets({ groupId, topic, earliest: true });
    await admin.deleteGroups([groupId]);
    await admin.deleteTopics({ topics: [topic] });
    assert.ok(!(await admin.listTopics()).includes(topic));
  });
});
