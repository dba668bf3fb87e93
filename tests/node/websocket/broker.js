// A broker with WebSocket listeners, plain and with TLS, for the tests of a file.

import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before } from 'node:test';
import { binary, start } from '../broker.js';

/** The broker: `ws` and `wss` are URLs, `ca` is the file with the authority. Available while the tests run. */
export function webSocketBroker() {
  const broker = {};
  const folder = mkdtempSync(join(tmpdir(), 'mainstem-websocket-'));
  const certs = join(folder, 'certs');
  before(async () => {
    execFileSync(binary(), ['cert', certs, '--host', 'localhost', '--host', '127.0.0.1']);
    const config = join(folder, 'mainstem.toml');
    const server = `certificate = "${certs}/server.crt", key = "${certs}/server.key"`;
    const listener = (name, rest) => `
[[listener]]
name = "${name}"
protocol = "mqtt"
listen = "127.0.0.1:0"
websocket = {}
${rest}`;
    writeFileSync(config, listener('ws', '') + listener('wss', `tls = { ${server} }`));
    const { addresses, stop } = await start('wss', ['--config', config]);
    const url = (name) => `${name}://localhost:${addresses[name].port}/mqtt`;
    Object.assign(broker, { ws: url('ws'), wss: url('wss'), ca: join(certs, 'ca.crt'), stop });
  });
  after(async () => {
    await broker.stop?.();
    rmSync(folder, { recursive: true, force: true });
  });
  return broker;
}
