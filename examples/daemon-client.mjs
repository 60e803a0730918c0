/**
 * A client of the daemon that fails open.
 *
 * Checks five calls with a burst of 3, then stops the daemon: the next call is allowed without it.
 */

import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { connect } from 'sluice/client';

const command = fileURLToPath(
  new URL('dist/bin/sluice.js', import.meta.resolve('sluice/package.json')),
);
const args = [
  'serve',
  '--rate',
  '1/m',
  '--burst',
  '3',
  '--line',
  'off',
  '--resp',
  '127.0.0.1:0',
  '--http',
  'off',
];
const daemon = spawn(process.execPath, [command, ...args], { stdio: ['ignore', 'pipe', 'ignore'] });

/** The RESP address, from the output of the daemon. */
const at = await new Promise((resolve) => {
  let output = '';
  daemon.stdout.on('data', (chunk) => {
    output += chunk;
    const [, address] = /resp +(\S+)[\s\S]*ready/.exec(output) ?? [];
    if (address) resolve(address);
  });
});

const sluice = connect({ at, deadline: '1s' });
let served = 0;
for (let n = 1; n <= 5; n++) {
  const decision = await sluice.check('alice');
  const isAllowed = decision.verdict === 'allow';
  if (isAllowed) served++;
  console.log(`call ${n}: ${isAllowed ? 'served' : `refused by limit ${decision.limit}`}`);
}

daemon.kill();
await new Promise((resolve) => daemon.once('exit', resolve));
const isServed = await sluice.isAllowed('alice');
console.log(`without a daemon: ${isServed ? 'served (fail open)' : 'refused'}`);
await sluice.close();

if (served !== 3 || !isServed) process.exitCode = 1;
