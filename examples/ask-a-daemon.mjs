/**
 * Checks calls with a daemon on this host, from a program that must not fail because of it.
 *
 * Prints which calls are served, stops the daemon, and shows that the client then fails open.
 */

import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { connect } from 'sluice/client';

const command = fileURLToPath(
  new URL('dist/cli/main.js', import.meta.resolve('sluice/package.json')),
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

/** The address that the daemon listens on, from its output. */
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
  if (decision.verdict === 'allow') served++;
  console.log(
    decision.verdict === 'allow'
      ? `call ${n}: served`
      : `call ${n}: refused by limit ${decision.limit}`,
  );
}

daemon.kill();
await new Promise((resolve) => daemon.once('exit', resolve));
const isServed = await sluice.isAllowed('alice');
console.log(`without a daemon: ${isServed ? 'served all the same' : 'refused'}`);
await sluice.close();

if (served !== 3 || !isServed) process.exitCode = 1;
