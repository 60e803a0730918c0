/**
 * A daemon on this host, asked by a program that must never fail because of it.
 *
 * Prints who was served, stops the daemon in between, and shows that the program goes on.
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

/** Resolves with the address that the daemon says it listens on. */
const at = await new Promise((resolve) => {
  let said = '';
  daemon.stdout.on('data', (chunk) => {
    said += chunk;
    const [, address] = /resp +(\S+)[\s\S]*ready/.exec(said) ?? [];
    if (address) resolve(address);
  });
});

const sluice = connect({ at, deadline: '1s' });
let served = 0;
for (let n = 1; n <= 5; n++) {
  const answer = await sluice.check('alice');
  if (answer.verdict === 'allow') served++;
  console.log(
    answer.verdict === 'allow'
      ? `call ${n}: served`
      : `call ${n}: refused by limit ${answer.limit}`,
  );
}

daemon.kill();
await new Promise((resolve) => daemon.once('exit', resolve));
const isServed = await sluice.isAllowed('alice');
console.log(`without a daemon: ${isServed ? 'served all the same' : 'refused'}`);
await sluice.close();

if (served !== 3 || !isServed) process.exitCode = 1;
