import { once } from 'node:events';
import { createServer } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { freePorts } from '../bench/ports.mjs';
import { ANNOUNCES, ExitedError, startServer } from '../bench/server-process.mjs';
import { etcdServer, redisServer, startRedis } from './support/services.ts';

const { startCluster } = await import(`${process.cwd()}/bench/soak/etcd/cluster.mjs`);

const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0)) await end();
});

/** Chooses ports of which the `nth` is taken, in the first `times` choices. */
function portsTaken(nth: number, times: number) {
  const choices: number[][] = [];
  const choosePorts = async (count: number): Promise<number[]> => {
    const ports = await freePorts(count);
    choices.push(ports);
    if (choices.length > times) return ports;
    const taker = createServer().listen(ports[nth], '127.0.0.1');
    ends.push(() => taker.close());
    await once(taker, 'listening');
    return ports;
  };
  return { choices, choosePorts };
}

const redisOn = (choosePorts: (count: number) => Promise<number[]>) =>
  startServer({
    command: redisServer() ?? '',
    choosePorts,
    argsIn: (_folder, [port]) => ['--port', `${port}`, '--bind', '127.0.0.1', '--save', ''],
    announces: ANNOUNCES.redis,
  });

describe('servers on free ports', () => {
  test('ports of one choice differ', async () => {
    const ports = await freePorts(300);
    expect(new Set(ports).size).toBe(300);
  });

  test.skipIf(!redisServer())('a taken port: starts on another one, soon', async () => {
    const { choices, choosePorts } = portsTaken(0, 2);
    const since = performance.now();
    const server = await redisOn(choosePorts);
    ends.push(() => server.stop());
    expect(server.port).toBe(choices[2][0]);
    expect(performance.now() - since).toBeLessThan(10_000);
  });

  test.skipIf(!redisServer())(
    'every port taken: fails after 5 tries, with the output',
    async () => {
      const { choices, choosePorts } = portsTaken(0, 100);
      const failed = await redisOn(choosePorts).catch((error) => error);
      expect(failed).toBeInstanceOf(ExitedError);
      expect(failed.message).toMatch(
        /exited with 1 before it was ready:(.|\n)*Address already in use/,
      );
      expect(choices).toHaveLength(5);
    },
  );

  test.skipIf(!redisServer())(
    'restart: a port that is taken meanwhile is awaited, then used again',
    async () => {
      const server = await redisOn(freePorts);
      ends.push(() => server.stop());
      await server.kill();
      const taker = createServer().listen(server.port, '127.0.0.1');
      await once(taker, 'listening');
      const restarting = server.restart();
      setTimeout(() => taker.close(), 500);
      await restarting;
      expect(taker.listening).toBe(false);
    },
  );

  test.skipIf(!redisServer())('a wrong flag: the error has what the server printed', async () => {
    await expect(startRedis('--no-such-option', 'x')).rejects.toThrow(/no-such-option/);
  });

  test('a command that does not exist: fails, and names it', async () => {
    const starting = startServer({
      command: 'no-such-server',
      argsIn: () => [],
      announces: 'ready',
    });
    await expect(starting).rejects.toThrow(/no-such-server.*ENOENT/);
  });

  test.skipIf(!etcdServer())('etcd cluster: starts when a port of a member is taken', async () => {
    const { choices, choosePorts } = portsTaken(4, 1);
    const network = { addressOf: () => '127.0.0.1', within: () => [] };
    const cluster = await startCluster(network, choosePorts);
    ends.push(() => cluster.stop());
    const used = cluster.endpoints.map((url: string) => Number(new URL(url).port));
    expect(used).toEqual(choices[1].filter((_, n) => n % 2 === 0));
  });
});
