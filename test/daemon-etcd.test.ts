import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  countAllowed,
  daemonFixture,
  EPHEMERAL_PORTS,
  type RunningDaemon,
  waitUntil,
} from './support/daemon.ts';
import { expectReloadKeepsConsumption } from './support/reload-numbers.ts';
import { etcdServer, type Service, startEtcd } from './support/services.ts';

describe.skipIf(etcdServer() === undefined)('daemon with etcd limits', () => {
  let etcd: Service;
  let daemons: RunningDaemon[];
  const fixture = daemonFixture();
  const folder = fixture.place();

  beforeAll(async () => {
    etcd = await fixture.serve(startEtcd);
    const address = `http://127.0.0.1:${etcd.port}`;
    const limits = `
limits:
  shut: { bucket: { rate: 1/h, burst: 5 }, match: 'shut:*', etcd: { endpoints: ['${address}'], deadline: 2s } }
  kept: { bucket: { rate: 1/h, burst: 5 }, match: 'kept:*', etcd: { endpoints: ['${address}'], deadline: 10s } }
  flights: { concurrency: 3, match: 'flight:*', etcd: { endpoints: ['${address}'], deadline: 10s } }
  here: { bucket: { rate: 1/h, burst: 5 } }
`;
    const config = folder.file('sluice.yaml', limits);
    daemons = await Promise.all(
      [1, 2].map(() => fixture.start([...EPHEMERAL_PORTS, '--config', config])),
    );
  });

  afterAll(() => fixture.end());

  test('two daemons share one count', async () => {
    expect(await countAllowed(daemons[0], 'kept:a', 3)).toBe(3);
    expect(await countAllowed(daemons[1], 'kept:a', 9)).toBe(2);
    expect(await countAllowed(daemons[0], 'kept:a', 9)).toBe(0);
    expect(await countAllowed(daemons[0], 'kept:b', 9)).toBe(5);
  });

  test('two daemons share calls in flight, with weights and waiting calls', async () => {
    const http = daemons.map(({ addresses }) => `http://${addresses.http[0]}`);
    const check = async (n: number, query: string) => {
      const response = await fetch(`${http[n]}/check?key=flight:a&${query}`);
      return { status: response.status, ...((await response.json()) as { permit?: string }) };
    };
    const post = (n: number, path: string, body = {}): Promise<Response> =>
      fetch(`${http[n]}${path}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
      });
    const { permit } = await check(0, 'hold=1&cost=2');
    expect((await check(1, 'hold=1&cost=2')).status).toBe(503);
    expect((await check(1, '')).status).toBe(200); // without a permit it only peeks
    const waiting = check(1, 'hold=1&cost=2&wait=20s');
    expect((await post(0, '/settle', { permit })).status).toBe(200);
    expect(await waiting).toMatchObject({ status: 200 });
    expect((await check(0, 'hold=1')).status).toBe(200);
    expect((await check(0, 'hold=1')).status).toBe(503);
    const reset = await post(0, '/reset', { key: 'flight:a', limit: 'flights' });
    expect(reset.status).toBe(502); // calls in flight cannot be forgotten
    const page = await (await fetch(`${http[1]}/inspect?key=flight:a`)).json();
    expect(page).toMatchObject({ limits: [{ inFlight: 3, limit: 3, remaining: 0 }] });
  });

  test('a reload with another concurrency keeps calls in flight', async () => {
    const at = `etcd: { endpoints: ['http://127.0.0.1:${etcd.port}'], deadline: 10s }`;
    const text = (most: number): string => `limits: { jobs: { concurrency: ${most}, ${at} } }`;
    const config = folder.file('jobs.yaml', text(2));
    const daemon = await fixture.start([...EPHEMERAL_PORTS, '--config', config]);
    const http = `http://${daemon.addresses.http[0]}`;
    const hold = async (): Promise<number> => (await fetch(`${http}/check?key=a&hold=1`)).status;
    expect([await hold(), await hold(), await hold()]).toEqual([200, 200, 503]);
    folder.file('jobs.yaml', text(3));
    const reloaded = await fetch(`${http}/reload`, { method: 'POST' });
    expect(await reloaded.json()).toMatchObject({ ok: true, limits: 1, kept: 1 });
    expect([await hold(), await hold()]).toEqual([200, 503]);
  });

  test('a reload with other numbers keeps what was consumed, also with another period of a window', async () => {
    const backend = `etcd: { endpoints: ['http://127.0.0.1:${etcd.port}'], deadline: 10s }`;
    await expectReloadKeepsConsumption(fixture, folder, backend);
  });

  test('calls are refused in time while etcd is paused, and decided again afterwards', async () => {
    etcd.pause();
    const at = performance.now();
    expect(await countAllowed(daemons[0], 'shut:c', 50)).toBe(0);
    expect(await countAllowed(daemons[0], 'x', 9)).toBe(5);
    expect(performance.now() - at).toBeLessThan(20_000); // not one deadline of 2 s for each call
    await daemons[0].waitForLog(/warn limit unavailable limit=shut onUnavailable=deny reason=/);
    etcd.resume();
    await waitUntil(async () => (await countAllowed(daemons[0], 'shut:d', 1)) === 1);
    await daemons[0].waitForLog(/info limit available again limit=shut/);
  });
});
