/** A limit that daemons share through etcd, and its decisions during an outage. */

import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  countAllowed,
  daemonFixture,
  EPHEMERAL_PORTS,
  type RunningDaemon,
  waitUntil,
} from './support/daemon.ts';
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
  shut: { bucket: { rate: 1/h, burst: 5 }, match: 'shut:*', etcd: { endpoints: ['${address}'], deadline: 500ms } }
  here: { bucket: { rate: 1/h, burst: 5 } }
`;
    const config = folder.file('sluice.yaml', limits);
    daemons = await Promise.all(
      [1, 2].map(() => fixture.start([...EPHEMERAL_PORTS, '--config', config])),
    );
  });

  afterAll(() => fixture.end());

  test('two daemons share one count', async () => {
    expect(await countAllowed(daemons[0], 'shut:a', 3)).toBe(3);
    expect(await countAllowed(daemons[1], 'shut:a', 9)).toBe(2);
    expect(await countAllowed(daemons[0], 'shut:a', 9)).toBe(0);
    expect(await countAllowed(daemons[0], 'shut:b', 9)).toBe(5);
  });

  test('a reload with other numbers keeps what was consumed, also with another period of a window', async () => {
    const at = `etcd: http://127.0.0.1:${etcd.port}`;
    const text = (spacing: string, window: string, bucket: string): string => `
limits:
  slow: { spacing: { every: ${spacing} }, match: 'slow:*', ${at} }
  rolling: { window: ${window}, match: 'rolling:*', ${at} }
  burst: { bucket: ${bucket}, match: 'burst:*', ${at} }
`;
    const before = text('1h', '{ limit: 5, per: 1h }', '{ rate: 1/h, burst: 5 }');
    const config = folder.file('numbers.yaml', before);
    const daemon = await fixture.start([...EPHEMERAL_PORTS, '--config', config]);
    await waitUntil(async () => (await countAllowed(daemon, 'slow:a', 1)) === 1);
    expect(await countAllowed(daemon, 'rolling:a', 3)).toBe(3);
    expect(await countAllowed(daemon, 'burst:a', 4)).toBe(4);
    folder.file('numbers.yaml', text('3h', '{ limit: 4, per: 2h }', '{ rate: 1/h, burst: 6 }'));
    const http = `http://${daemon.addresses.http[0]}`;
    const reloaded = await fetch(`${http}/reload`, { method: 'POST' });
    expect(await reloaded.json()).toMatchObject({ ok: true, limits: 3, kept: 3 });
    const refused = await fetch(`${http}/check?key=slow:a`);
    expect(Number(refused.headers.get('Retry-After'))).toBeGreaterThan(2 * 3600); // by the old interval: less than 1 h
    expect(await countAllowed(daemon, 'rolling:a', 9)).toBe(1); // of a fresh window: 4
    expect(await countAllowed(daemon, 'burst:a', 9)).toBe(2);
  });

  test('calls are refused in time while etcd is paused, and decided again afterwards', async () => {
    etcd.pause();
    const at = performance.now();
    expect(await countAllowed(daemons[0], 'shut:c', 50)).toBe(0);
    expect(await countAllowed(daemons[0], 'x', 9)).toBe(5);
    expect(performance.now() - at).toBeLessThan(1500);
    await daemons[0].waitForLog(/warn limit unavailable limit=shut onUnavailable=deny reason=/);
    etcd.resume();
    await waitUntil(async () => (await countAllowed(daemons[0], 'shut:d', 1)) === 1);
    await daemons[0].waitForLog(/info limit available again limit=shut/);
  });
});
