// MQTT.js over WebSocket in a real browser: headless Chromium runs `page.js` and reports its results.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createReadStream, mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { unique } from '../peer.js';
import { webSocketBroker } from './broker.js';

const broker = webSocketBroker();
const DEADLINE_MS = 90_000;
const FILES = {
  '/mqtt.js': [new URL('../node_modules/mqtt/dist/mqtt.min.js', import.meta.url), 'text/javascript'],
  '/page.js': [new URL('page.js', import.meta.url), 'text/javascript'],
};
const PAGE = '<!doctype html><script src="/mqtt.js"></script><script type="module" src="/page.js"></script>';

/** Opens the page with `query` in Chromium, and returns what it reports. */
async function run(query) {
  const profile = mkdtempSync(join(tmpdir(), 'mainstem-chromium-'));
  const server = createServer();
  let chromium;
  try {
    const report = new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error(`no report within ${DEADLINE_MS} ms`)), DEADLINE_MS).unref();
      server.on('request', (request, response) => {
        const { pathname } = new URL(request.url, 'http://localhost');
        if (pathname === '/report') {
          const parts = [];
          request.on('data', (part) => parts.push(part));
          request.on('end', () => {
            response.end();
            resolve(JSON.parse(Buffer.concat(parts).toString()));
          });
        } else if (FILES[pathname]) {
          response.setHeader('Content-Type', FILES[pathname][1]);
          createReadStream(fileURLToPath(FILES[pathname][0])).pipe(response);
        } else {
          response.setHeader('Content-Type', 'text/html');
          response.end(PAGE);
        }
      });
      server.listen(0, '127.0.0.1', () => {
        // The flag about certificates is for the authority that only this test knows.
        const flags = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run'];
        flags.push('--ignore-certificate-errors', '--disable-background-networking', `--user-data-dir=${profile}`);
        const url = `http://localhost:${server.address().port}/?${new URLSearchParams(query)}`;
        // A process group of its own: what Chromium started is still writing to the profile after Chromium has ended.
        chromium = spawn('chromium', [...flags, url], { stdio: 'ignore', detached: true });
        chromium.once('error', reject);
        chromium.once('exit', (code) => reject(new Error(`Chromium ended with ${code}`)));
      });
    });
    return await report;
  } finally {
    if (chromium?.pid && chromium.exitCode === null) {
      chromium.removeAllListeners('exit');
      const exited = once(chromium, 'exit');
      process.kill(-chromium.pid, 'SIGKILL');
      await exited;
    }
    server.close();
    server.closeAllConnections();
    rmSync(profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
  }
}

for (const listener of ['ws', 'wss']) {
  test(`a page exchanges messages over ${listener}`, async () => {
    const { error, received, sent } = await run({ url: broker[listener], topic: unique() });
    assert.equal(error, undefined);
    assert.equal(received.length, 3 * sent.length);
    for (const qos of [0, 1, 2]) {
      const of = received.filter((message) => message.qos === qos).map(({ length, sum }) => ({ length, sum }));
      assert.deepEqual(of, sent, `QoS ${qos}`);
    }
  });
}

test('a page of another origin is refused', async () => {
  // The page comes from localhost, which is not the address in this URL.
  const url = broker.ws.replace('localhost', '127.0.0.1');
  const { error } = await run({ url, topic: unique() });
  assert.notEqual(error, undefined);
});
