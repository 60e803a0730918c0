import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { borrowRedis } from '../../../test/support/borrowed-servers.ts';
import { redisCli, redisServer, type Service } from '../../../test/support/services.ts';
import { VirtualFleet } from '../../../test/support/virtual-fleet.ts';
import { seededRandom } from '../../core/random.ts';
import { limiter } from '../../limiter/limiter.ts';
import { redis } from './options.ts';

const PROCESSES = 3;
const RUN_MS = 20_000;

describe.skipIf(redisServer() === undefined)('spacing of a fleet without a fair queue', () => {
  let service: Service;
  let fleet: VirtualFleet;

  beforeAll(async () => {
    service = await borrowRedis();
  });
  afterAll(() => service.stop());
  beforeEach(async () => {
    redisCli(service.port, 'FLUSHALL');
    fleet = await VirtualFleet.start(service.port);
  });
  afterEach(() => fleet.stop());

  /** When the permits of each process were due; all callers always want another one. */
  async function permitsOf(every: number, rttMs: number, callers: number): Promise<number[][]> {
    const random = seededRandom(5);
    let isOver = false;
    const apis = Array.from({ length: PROCESSES }, () => {
      const { client, clock } = fleet.process(rttMs);
      const backend = redis(client, { deadline: '5s' });
      return limiter({ name: 'api', limit: { spacing: { every } }, backend, clock, random });
    });
    const warm = Promise.all(apis.map((api) => api.acquire('warm-up')));
    await fleet.run(10 * rttMs + 10 * every + 200);
    await warm;
    const dueAts = apis.map((api) => {
      const ofProcess: number[] = [];
      const loop = async (): Promise<void> => {
        while (!isOver) {
          const permit = await api.acquire('key');
          if (permit.verdict === 'allow') ofProcess.push(permit.dueAt);
        }
      };
      for (let n = 0; n < callers; n++) void loop();
      return ofProcess;
    });
    await fleet.run(RUN_MS);
    isOver = true;
    const closing = Promise.all(apis.map((api) => api.close()));
    await fleet.run(5 * rttMs + 1000);
    await closing;
    return dueAts;
  }

  test.each([
    [50, 400, 8],
    [50, 400, 40],
    [50, 100, 8],
    [1000, 400, 8],
    [20, 1, 8],
  ])(
    'every %i ms at a round trip of %i ms, %i callers: uses 98 % of the permits or more, none too close',
    async (every, rttMs, callers) => {
      const byProcess = await permitsOf(every, rttMs, callers);
      const dueAts = byProcess.flat().sort((a, b) => a - b);
      const gaps = dueAts.slice(1).map((at, n) => at - dueAts[n]);
      const used = ((dueAts.length - 1) * every) / (dueAts[dueAts.length - 1] - dueAts[0]);
      expect(Math.min(...gaps)).toBeGreaterThan(every - 1e-3);
      // The first check of a process is for one caller: the others have not called yet.
      expect(used).toBeGreaterThan(0.98);
    },
  );
});
