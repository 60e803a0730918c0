/**
 * A hostile client: connections that send the same bytes without pause, and discard the replies.
 *
 *     node bench/soak/flooder.mjs '{"port":7610,"connections":4,"bytes":"a\n"}'
 *
 * It ends when its standard input is closed, so it never outlives the process that started it.
 */

import { connect } from 'node:net';

const BLOCK_BYTES = 262_144;

const { port, connections, bytes } = JSON.parse(process.argv[2]);
const block = Buffer.from(bytes.repeat(Math.ceil(BLOCK_BYTES / bytes.length)), 'latin1');

const open = () => {
  const socket = connect({ port, host: '127.0.0.1' }, send);
  function send() {
    while (!socket.destroyed && socket.write(block));
  }
  socket.on('drain', send);
  socket.on('data', () => {});
  socket.on('error', () => {});
  socket.on('close', () => setTimeout(open, 5));
};
for (let n = 0; n < connections; n++) open();

process.stdout.write('flooding\n');
process.stdin.on('end', () => process.exit(0)).resume();
