/** A limit that daemons share through Redis, and what they answer when it is gone. */

import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  daemonFixture,
  EPHEMERAL_PORTS,
  exchange,
  type RunningDaemon,
  waitUntil,
} from './support/daemon.ts';
import { redisServer, type Service, startRedis } from './support/services.ts';

describe.skipIf(redisServer() === undefined)('limits shared through Redis', () => {
  let redis: Service;
  let daemons: RunningDaemon[];
  const own = daemonFixture();
  const place = own.place();

  beforeAll(async () => {
    redis = await own.serve(startRedis);
    const url = `redis://127.0.0.1:${redis.port}`;
    const config = place.file(
      'sluice.yaml',
      `
limits:
  open: { bucket: { rate: 1/h, burst: 5 }, match: 'open:*', redis: { url: '${url}', onUnavailable: allow } }
  shut: { bucket: { rate: 1/h, burst: 5 }, match: 'shut:*', redis: { url: '${url}', onUnavailable: deny } }
  here: { bucket: { rate: 1/h, burst: 5 } }
`,
    );
    daemons = await Promise.all(
      [1, 2].map(() => own.start([...EPHEMERAL_PORTS, '--config', config])),
    );
    // A daemon is ready whether or not it has reached Redis yet.
    for (const n of [0, 1])
      await waitUntil(async () => (await ask(n, ['shut:reached']))[0] === 'OK');
  });

  afterAll(() => own.end());

  const ask = async (n: number, tags: readonly string[]): Promise<string[]> => {
    const answer = await exchange(
      daemons[n].addresses.line[0],
      tags.map((tag) => `${tag}\n`).join(''),
    );
    return answer.trim().split('\n');
  };
  const times = (tag: string, count: number): string[] => Array.from({ length: count }, () => tag);
  const served = (answers: readonly string[]): number =>
    answers.filter((own) => own === 'OK').length;

  test('are one count for all daemons, and answers keep their order', async () => {
    const mixed = times('shut:a', 3).flatMap((tag) => [tag, 'x']);
    expect(await ask(0, mixed)).toEqual(times('OK', 6));
    expect(served(await ask(1, times('shut:a', 9)))).toBe(2);
    expect(served(await ask(0, times('shut:a', 9)))).toBe(0);
    expect(served(await ask(1, times('x', 9)))).toBe(5); // decided there, and nobody else's
  });

  test('are answered by onUnavailable while Redis is gone, at once, and strictly again when it is back', async () => {
    await redis.kill();
    const at = performance.now();
    expect(await ask(0, times('open:b', 9))).toEqual(times('OK', 9));
    expect(await ask(0, times('shut:b', 9))).toEqual(times('NO', 9));
    expect(served(await ask(0, times('y', 9)))).toBe(5);
    expect(performance.now() - at).toBeLessThan(2000);
    expect(daemons[0].log()).toMatch(
      /warn limit out of reach limit=shut onUnavailable=deny reason=/,
    );
    await redis.restart();
    await waitUntil(async () => (await ask(0, ['shut:c']))[0] === 'OK');
    await daemons[0].waitForLog(/info limit in reach again limit=shut/);
  });

  test('are answered in time while Redis does not answer', async () => {
    redis.pause();
    const at = performance.now();
    const answers = await ask(1, [
      ...times('shut:d', 50),
      ...times('z', 5),
      ...times('shut:d', 50),
    ]);
    expect(performance.now() - at).toBeLessThan(2000);
    expect(answers).toEqual([...times('NO', 50), ...times('OK', 5), ...times('NO', 50)]);
    redis.resume();
    await waitUntil(async () => (await ask(1, ['shut:e']))[0] === 'OK');
  });

  test('that a reload drops still answer what they were asked before', async () => {
    const url = `redis://127.0.0.1:${redis.port}`;
    const here = 'here: { bucket: { rate: 1/h, burst: 50 } }';
    const far = `far: { bucket: { rate: 1/h, burst: 5 }, match: 'far:*', redis: { url: '${url}', deadline: 10s, onUnavailable: deny } }`;
    const config = place.file('reloaded.yaml', `limits:\n  ${here}\n  ${far}\n`);
    const daemon = await own.start([...EPHEMERAL_PORTS, '--config', config]);
    const asked = (text: string): Promise<string> => exchange(daemon.addresses.line[0], text);
    await waitUntil(async () => (await asked('far:a\n')) === 'OK\n');
    redis.pause();
    const answer = asked('far:b\n');
    await asked('x\n'); // which came later, so the other one is on its way
    place.file('reloaded.yaml', `deny: [gone]\nlimits:\n  ${here}\n`);
    daemon.signal('SIGHUP');
    await waitUntil(async () => (await asked('gone\n')) === 'NO\n');
    redis.resume();
    expect(await answer).toBe('OK\n');
    await daemon.waitForLog(/info reloaded limits=1/);
    expect(await daemon.stop()).toBe(0);
  });
});
