// Rewrites package-lock.json without any address: neither download nor funding URLs. `npm ci` finds packages by name and
// verifies them by their hashes.

import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';

const LOCK = new URL('package-lock.json', import.meta.url);

execFileSync('npm', ['install', '--package-lock-only', '--omit-lockfile-registry-resolved', '--no-audit', '--no-fund'], {
  cwd: new URL('.', import.meta.url),
  stdio: 'inherit',
});
const lock = JSON.parse(readFileSync(LOCK, 'utf8'));
for (const entry of Object.values(lock.packages)) {
  delete entry.resolved;
  delete entry.funding;
}
writeFileSync(LOCK, `${JSON.stringify(lock, null, 2)}\n`);
