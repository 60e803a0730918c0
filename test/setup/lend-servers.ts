/**
 * Lends each worker of a test run one Redis, one NATS and one etcd, started at the first request for it.
 *
 *     worker 2  ── "redis 2" ──►  this process: starts it, or knows it
 *               ◄── { port, pid } ──
 *
 * A worker runs one file at a time, so a file has its servers for itself. `borrow…` of support/borrowed-servers.ts
 * empties them; the servers end with the run, and so do the folders for temporary files.
 */

import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';
import { type Service, startEtcd, startNats, startRedis } from '../support/services.ts';

const START = { redis: startRedis, nats: startNats, etcd: startEtcd };
export type Lent = keyof typeof START;

declare module 'vitest' {
  interface ProvidedContext {
    /** The socket on which servers are lent. */
    lender: string;
  }
}

export default async function lendServers(project: TestProject): Promise<() => Promise<void>> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-tests-'));
  chmodSync(folder, 0o755); // tests of files for other users reach theirs
  process.env.TMPDIR = folder; // of the workers and all that they start: what a killed one leaves goes with the run
  const started = new Map<string, Promise<Service>>();
  const serverOf = (request: string): Promise<Service> => {
    const known = started.get(request);
    if (known !== undefined) return known;
    const starting = START[request.split(' ')[0] as Lent]();
    started.set(request, starting);
    return starting;
  };
  const lender = createServer((socket) => {
    socket.once('data', (request) => {
      serverOf(`${request}`).then(
        ({ port, pid }) => socket.end(JSON.stringify({ port, pid })),
        (error) => socket.end(JSON.stringify({ error: `${error}` })),
      );
    });
    socket.on('error', () => {}); // the worker has ended
  });
  const path = join(folder, 'lender.sock');
  await new Promise<void>((resolve) => lender.listen(path, resolve));
  project.provide('lender', path);
  return async () => {
    lender.close();
    await Promise.allSettled([...started.values()].map(async (server) => (await server).stop()));
    rmSync(folder, { recursive: true, force: true });
  };
}
