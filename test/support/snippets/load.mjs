/**
 * Loads snippets one after the other in one process, which then ends: a snippet may leave a server or a connection open.
 * Before each, its name follows a separator on both outputs. Timers and promises that it leaves have a moment to fail.
 *
 *     node load.mjs PORT-OF-REDIS-OR-0 FILE…
 */

import { writeSync } from 'node:fs';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';

const GRACE_MS = 30;
const SEPARATOR = '\u001e';

/** No snippet sees what another one has counted. */
const emptyRedis = (port) =>
  new Promise((done, failed) => {
    const socket = connect(port, '127.0.0.1', () => socket.write('FLUSHALL\r\n'));
    socket.once('error', failed).once('data', () => done(socket.destroy()));
  });

const [redisPort, ...files] = process.argv.slice(2);
for (const file of files) {
  if (redisPort !== '0') await emptyRedis(Number(redisPort));
  for (const output of [1, 2]) writeSync(output, `${SEPARATOR}${file}\n`);
  await import(pathToFileURL(file).href);
  await sleep(GRACE_MS);
}
process.exit();
