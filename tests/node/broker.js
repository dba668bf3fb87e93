// The broker under test: a running one at MAINSTEM_BROKER (MAINSTEM_KAFKA for the Kafka listener), else a process of the
// binary MAINSTEM_BIN, else of the binary that cargo built.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before } from 'node:test';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const START_MS = 10_000;
const DRAIN_MS = 15_000;

/** Path of the binary. */
export function binary() {
  if (process.env.MAINSTEM_BIN) return process.env.MAINSTEM_BIN;
  const built = ['release', 'debug'].map((profile) => join(ROOT, 'target', profile, 'mainstem')).find(existsSync);
  assert.ok(built, 'no mainstem binary: build one, or name it in MAINSTEM_BIN');
  return built;
}

/** Starts the binary with more flags, and waits until a listener and those announced before it accept connections. */
export async function start(listener, more = []) {
  const data = mkdtempSync(join(tmpdir(), 'mainstem-test-'));
  const flags = ['--listen', '127.0.0.1:0', '--kafka-listen', '127.0.0.1:0', '--data', data, ...more];
  flags.push('--http-listen', '127.0.0.1:0', '--set', 'mqtt.sys_interval_s=1');
  const child = spawn(binary(), flags, { stdio: ['ignore', 'pipe', 'inherit'] });
  const addresses = {};
  const kill = () => child.kill('SIGKILL');
  process.once('exit', kill);
  const ready = new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`not listening within ${START_MS} ms`)), START_MS).unref();
    child.once('error', reject);
    child.once('exit', (code, signal) => reject(new Error(`the broker ended with ${code ?? signal}`)));
    createInterface({ input: child.stdout }).on('line', (line) => {
      const [, name, host, port] = line.match(/(\w+) listening on (\S+):(\d+)$/) ?? [];
      if (!name) return;
      addresses[name] = { host, port: Number(port) };
      if (name === listener) resolve(addresses[name]);
    });
  });
  // SIGTERM drains the broker, which must then exit with status 0.
  const stop = async () => {
    const exited = once(child, 'exit', { signal: AbortSignal.timeout(DRAIN_MS) });
    child.kill('SIGTERM');
    const [code, signal] = await exited;
    process.removeListener('exit', kill);
    rmSync(data, { recursive: true, force: true });
    assert.deepEqual({ code, signal }, { code: 0, signal: null }, 'exit status after SIGTERM');
  };
  return { ...(await ready), addresses, stop };
}

/** The address of a listener of the broker that all tests of a file share; available while they run. */
export function sharedBroker(listener = 'mqtt') {
  const broker = {};
  before(async () => {
    const address = process.env[listener === 'kafka' ? 'MAINSTEM_KAFKA' : 'MAINSTEM_BROKER'];
    if (address) {
      const [host, port] = address.split(':');
      Object.assign(broker, { host, port: Number(port), stop: async () => {} });
    } else {
      Object.assign(broker, await start(listener));
    }
  });
  after(() => broker.stop?.());
  return broker;
}
