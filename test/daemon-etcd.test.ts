/** A limit that daemons share through etcd, and what they answer when it is gone. */

import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { converse, folder, type RunningDaemon, startDaemon, until } from './support/daemon.ts';
import { etcdServer, type Service, startEtcd } from './support/services.ts';

const EPHEMERAL = ['--line', '127.0.0.1:0', '--resp', 'off', '--http', 'off'];

describe.skipIf(etcdServer() === undefined)('limits shared through etcd', () => {
  let etcd: Service;
  let daemons: RunningDaemon[];
  const place = folder();

  beforeAll(async () => {
    etcd = await startEtcd();
    const address = `http://127.0.0.1:${etcd.port}`;
    const limits = `
limits:
  shut: { bucket: { rate: 1/h, burst: 5 }, match: 'shut:*', etcd: { endpoints: ['${address}'], deadline: 500ms } }
  here: { bucket: { rate: 1/h, burst: 5 } }
`;
    const config = place.file('sluice.yaml', limits);
    daemons = await Promise.all([1, 2].map(() => startDaemon([...EPHEMERAL, '--config', config])));
  });

  afterAll(async () => {
    await Promise.all(daemons.map((daemon) => daemon.stop('SIGKILL')));
    await etcd.stop();
    place.remove();
  });

  const served = async (n: number, tag: string, times: number): Promise<number> => {
    const answer = await converse(daemons[n].at.line[0], `${tag}\n`.repeat(times));
    return answer
      .trim()
      .split('\n')
      .filter((own) => own === 'OK').length;
  };

  test('are one count for all daemons', async () => {
    expect(await served(0, 'shut:a', 3)).toBe(3);
    expect(await served(1, 'shut:a', 9)).toBe(2);
    expect(await served(0, 'shut:a', 9)).toBe(0);
    expect(await served(0, 'shut:b', 9)).toBe(5);
  });

  test('are refused in time while it is gone, and decided again when it is back', async () => {
    etcd.pause();
    const at = performance.now();
    expect(await served(0, 'shut:c', 50)).toBe(0);
    expect(await served(0, 'x', 9)).toBe(5);
    expect(performance.now() - at).toBeLessThan(1500);
    await daemons[0].logged(/warn limit out of reach limit=shut onUnavailable=deny reason=/);
    etcd.resume();
    await until(async () => (await served(0, 'shut:d', 1)) === 1);
    await daemons[0].logged(/info limit in reach again limit=shut/);
  });
});
