/**
 * The servers of this worker, emptied (setup/lend-servers.ts starts them). A test that kills, restarts or configures a
 * server starts its own.
 */

import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { inject } from 'vitest';
import { pause } from '../../bench/server-process.mjs';
import type { Lent } from '../setup/lend-servers.ts';
import { redisCli, type Service } from './services.ts';

async function borrow(name: Lent): Promise<Service> {
  const socket = connect(inject('lender'));
  socket.write(`${name} ${process.env.VITEST_POOL_ID}`);
  const { port, pid, error } = JSON.parse(await text(socket));
  if (error !== undefined) throw new Error(error);
  const resume = (): void => void process.kill(pid, 'SIGCONT');
  resume(); // the file before may have failed while it was paused
  const notMine = (): never => {
    throw new Error(`a borrowed ${name} outlives this test: start one to kill, restart or wipe it`);
  };
  const returned = async (): Promise<void> => {};
  const unavailable = { kill: notMine, restart: notMine, wipe: notMine };
  return { port, pid, pause: () => pause(pid), resume, stop: returned, ...unavailable };
}

/** A Redis without keys, scripts and statistics. */
export async function borrowRedis(): Promise<Service> {
  const server = await borrow('redis');
  for (const words of [['FLUSHALL'], ['SCRIPT', 'FLUSH'], ['CONFIG', 'RESETSTAT']])
    redisCli(server.port, ...words);
  return server;
}

/** An etcd without keys. */
export async function borrowEtcd(): Promise<Service> {
  const server = await borrow('etcd');
  const every = Buffer.from([0]).toString('base64'); // as key and as end: the whole range
  const response = await fetch(`http://127.0.0.1:${server.port}/v3/kv/deleterange`, {
    method: 'POST',
    body: JSON.stringify({ key: every, range_end: every }),
  });
  if (!response.ok) throw new Error(`etcd replied ${response.status} to deleterange`);
  return server;
}

/** A NATS server. Clients of earlier files have gone, and their subscriptions with them. */
export const borrowNats = (): Promise<Service> => borrow('nats');
