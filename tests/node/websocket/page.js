// Runs in the browser: sends messages to itself, and reports what arrives.

/* global mqtt */

const parameters = new URLSearchParams(location.search);
const topic = parameters.get('topic');
const SIZES = [0, 1, 100, 125, 126, 9_000, 65_535, 65_536, 500_000];
const DEADLINE_MS = 45_000;

const payloads = SIZES.map((size) => new Uint8Array(size).map((_, index) => (index * 7 + size) % 256));
const digest = (bytes) => ({ length: bytes.length, sum: bytes.reduce((sum, byte, index) => (sum * 31 + byte + index) % 65_521, 0) });

async function exchange() {
  const client = await mqtt.connectAsync(parameters.get('url'), { protocolVersion: 5, reconnectPeriod: 0 }, false);
  const received = [];
  const all = new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`${received.length} messages arrived`)), DEADLINE_MS);
    client.on('message', (_topic, payload, packet) => {
      if (received.push({ qos: packet.qos, ...digest(payload) }) === 3 * payloads.length) resolve();
    });
  });
  await client.subscribeAsync(`${topic}/#`, { qos: 2 });
  for (const qos of [0, 1, 2]) {
    for (const payload of payloads) await client.publishAsync(`${topic}/${qos}`, payload, { qos });
  }
  await all;
  await client.endAsync();
  return { received, sent: payloads.map(digest) };
}

const report = await exchange().catch((error) => ({ error: `${error}` }));
await fetch('/report', { method: 'POST', body: JSON.stringify(report) });
