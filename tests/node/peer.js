// An MQTT.js client for tests: packets that arrive go to queues, and every wait has a deadline.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import mqtt from 'mqtt';

const DEADLINE_MS = 30_000;

/** Protocol levels, and the names of the versions. */
export const VERSIONS = [3, 4, 5];
export const NAMES = { 3: '3.1', 4: '3.1.1', 5: '5' };

/** A prefix for the topics and client identifiers of one test. */
export const unique = () => `n${randomUUID().slice(0, 13)}`;

/** `0`, `1`, … as payloads. */
export const numbers = (count) => Array.from({ length: count }, (_, number) => `${number}`);

/** Lets time pass, for tests of an interval of the protocol. */
export const letPass = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

/** Values that arrive, and pending waits for them. */
export class Queue {
  #values = [];
  #waiting = [];

  put(value) {
    const waiter = this.#waiting.shift();
    if (waiter) waiter(value);
    else this.#values.push(value);
  }

  get empty() {
    return this.#values.length === 0;
  }

  next(what = 'a value') {
    if (!this.empty) return Promise.resolve(this.#values.shift());
    return new Promise((resolve, reject) => {
      const waiter = (value) => {
        clearTimeout(timer);
        resolve(value);
      };
      const timer = setTimeout(() => {
        this.#waiting.splice(this.#waiting.indexOf(waiter), 1);
        reject(new Error(`no ${what} within ${DEADLINE_MS} ms`));
      }, DEADLINE_MS);
      this.#waiting.push(waiter);
    });
  }
}

export class Peer {
  #messages = new Queue();
  #errors = [];
  disconnects = new Queue();
  closed = new Queue();

  /**
   * Connects and waits for the CONNACK, which is stored in `connack`. `options` are those of MQTT.js, with these
   * defaults: version 5, a clean start, no reconnection.
   */
  static async connect(broker, clientId, options = {}) {
    const protocolVersion = options.protocolVersion ?? 5;
    const peer = new Peer();
    peer.client = mqtt.connect({
      host: broker.host,
      port: broker.port,
      clientId,
      protocolVersion,
      protocolId: protocolVersion === 3 ? 'MQIsdp' : 'MQTT',
      reconnectPeriod: 0,
      resubscribe: false,
      ...options,
    });
    const connack = new Queue();
    peer.client.on('connect', (packet) => connack.put(packet));
    peer.client.on('error', (error) => {
      peer.#errors.push(error);
      connack.put(error);
    });
    peer.client.on('message', (topic, payload, packet) => peer.#messages.put({ ...packet, topic, text: payload.toString() }));
    peer.client.on('disconnect', (packet) => peer.disconnects.put(packet));
    peer.client.on('close', () => peer.closed.put(true));
    peer.connack = await connack.next('CONNACK');
    if (peer.connack instanceof Error) {
      peer.client.end(true);
      throw peer.connack;
    }
    return peer;
  }

  /** Subscribes, and returns the reason code of the SUBACK. */
  async subscribe(filter, options) {
    const granted = await this.client.subscribeAsync(filter, options);
    assert.equal(granted.length, 1);
    return granted[0].qos;
  }

  unsubscribe(filter) {
    return this.client.unsubscribeAsync(filter);
  }

  /** Resolves when the QoS handshake is complete. */
  publish(topic, payload, options) {
    return this.client.publishAsync(topic, payload, options);
  }

  /** Publishes in order, with up to 20 handshakes in progress: MQTT.js ignores the server's receive maximum. */
  async publishAll(topic, payloads, options) {
    const underWay = [];
    for (const payload of payloads) {
      if (underWay.length === 20) await underWay.shift();
      underWay.push(this.publish(topic, payload, options));
    }
    await Promise.all(underWay);
  }

  next() {
    return this.#messages.next('message');
  }

  async receive(count) {
    const got = [];
    while (got.length < count) got.push(await this.next());
    return got;
  }

  /** The messages before the one with this payload, which a test sends last to show that nothing else arrives. */
  async receiveUntil(text) {
    const got = [];
    for (;;) {
      const message = await this.next();
      if (message.text === text) return got;
      got.push(message);
    }
  }

  /** Disconnects, and fails if the client reported an error. */
  async leave(options) {
    // Packets that it cannot send any more while it closes are no error.
    assert.deepEqual(this.#errors, []);
    await this.client.endAsync(false, options);
  }

  /** Closes the connection without a DISCONNECT, as a network failure would. */
  async cut() {
    this.client.stream.destroy();
    await this.closed.next('close');
    await this.client.endAsync(true);
  }
}

/** Runs `body` with clients. Disconnects them afterwards, or closes their connections if it fails. */
export async function withPeers(peers, body) {
  const connected = await Promise.all(peers);
  try {
    await body(...connected);
  } catch (failure) {
    for (const peer of connected) peer.client.end(true);
    throw failure;
  }
  for (const peer of connected) await peer.leave();
}
