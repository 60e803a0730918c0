import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { Registers, type Weather, wrongClock } from '../../../test/support/registers.ts';
import { seededRandom } from '../../core/random.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import { type Limit, policyOf } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import type { RemoteShareMaker } from '../remote-backend.ts';
import { RegisterShare } from './backend.ts';
import type { RegisterServer } from './store.ts';

const HOUR_MS = 3_600_000;
const DEADLINE_MS = 200;
const SLACK_MS = 5;
/** How much later than it was decided a permit of a bucket may begin, and a process may be held up besides. */
const LATE_MS_MAX = DEADLINE_MS + 30;

/** Lets time pass a little at a time, and everybody finish what they do. */
async function pass(world: VirtualClock, ms: number): Promise<void> {
  for (let n = 0; n < ms; n++) {
    world.advance(1);
    await new Promise((turn) => setImmediate(turn));
  }
}

function makerOf(registers: Registers): RemoteShareMaker {
  const server = registers.server(DEADLINE_MS / 3);
  const times = { deadlineMs: DEADLINE_MS, slackMs: SLACK_MS };
  const options = { prefix: '/', ...times, onUnavailable: 'deny' } as const;
  return {
    isRemote: true,
    make: (policy, setting) => new RegisterShare(policy, setting, server, options),
  };
}

interface Played {
  /** When permits began, in the world's time. */
  readonly starts: number[];
  readonly refused: number;
  readonly unheard: number;
}

interface Play {
  readonly seed: number;
  readonly limit: Limit;
  readonly weather: Weather;
  readonly processes?: number;
  readonly ms?: number;
}

/** Some processes wait for permits all the time, others ask now and then. */
async function play({ seed, limit, weather, processes = 6, ms = 4000 }: Play): Promise<Played> {
  const random = seededRandom(seed);
  const world = new VirtualClock(1_000_000);
  const registers = new Registers(world, random, weather);
  const starts: number[] = [];
  let refused = 0;
  let isOver = false;
  const made = Array.from({ length: processes }, () => {
    const wrong = { aheadMs: (2 * random() - 1) * HOUR_MS, faster: (random() - 0.5) * 0.0005 };
    const clock = wrongClock(world, wrong, weather, random);
    return limiter({ name: 'api', limit, share: makerOf(registers), clock, random });
  });
  const tell = (verdict: string): unknown =>
    verdict === 'allow' ? starts.push(world.now()) : refused++;
  const wait = async (api: RemoteLimiter): Promise<void> => {
    while (!isOver) {
      const waitMsMax = random() < 0.5 ? Infinity : 200 * random(); // some give back what they have reserved
      tell((await api.acquire('token', 1, { wait: waitMsMax })).verdict);
    }
  };
  const ask = async (api: RemoteLimiter): Promise<void> => {
    while (!isOver) {
      const entry = await api.tryAcquire('token');
      tell(entry.verdict);
      await new Promise<void>((later) => {
        world.wakeAt(world.now() + random() * 50, later);
      });
    }
  };
  for (const [n, api] of made.entries()) (n % 3 === 2 ? ask : wait)(api);
  await pass(world, ms);
  isOver = true;
  const closing = Promise.all(made.map((api) => api.close()));
  await pass(world, 500);
  await closing;
  return { starts: starts.sort((a, b) => a - b), refused, unheard: registers.unheard };
}

const leastGap = (starts: readonly number[]): number =>
  Math.min(...starts.slice(1).map((at, n) => at - starts[n]));

const weathers = fc.record({
  lost: fc.constantFrom(0, 0.02, 0.1),
  slowMs: fc.constantFrom(10, 100, 400),
  heldUp: fc.constantFrom(0, 0.1),
});

describe('a limit decided by registers', () => {
  test('keeps calls apart, whatever is lost or late, on clocks an hour apart', async () => {
    let begun = 0;
    let unheard = 0;
    const spacings = fc.record({
      every: fc.constantFrom(10, 40, 200),
      reserve: fc.constantFrom(0, 0, 3),
    });
    await fc.assert(
      fc.asyncProperty(fc.nat(), spacings, weathers, async (seed, spacing, weather) => {
        const played = await play({ seed, limit: { spacing }, weather, ms: 1500 });
        begun += played.starts.length;
        unheard += played.unheard;
        expect(leastGap(played.starts)).toBeGreaterThanOrEqual(spacing.every);
      }),
      { numRuns: 25 },
    );
    expect(begun).toBeGreaterThan(200); // or the property would prove little,
    expect(unheard).toBeGreaterThan(20); // and so without swaps that nobody heard of
  }, 120_000);

  test('a place that is given back and taken again in one breath is as new as any other', async () => {
    const every = 2000; // with the slack and the drift a round number: no dust tells one place from the other
    const world = new VirtualClock(1_000_000);
    const random = seededRandom(1);
    const registers = new Registers(world, random, { lost: 0, slowMs: 0, heldUp: 0 });
    const made = (): RemoteLimiter => {
      const limit = { spacing: { every, reserve: 3 } };
      return limiter({ name: 'api', limit, share: makerOf(registers), clock: world, random });
    };
    const [a, b] = [made(), made()];
    /** When a place is due that is asked for now. */
    const ask = async (api: RemoteLimiter): Promise<number> => {
      const asked = api.ask('token').then((told) => {
        if (told.verdict === 'deny') throw new Error('it was refused');
        return world.now() + (told.verdict === 'wait' ? told.waitMs : 0);
      });
      await pass(world, 20);
      return asked;
    };
    await ask(b);
    const mine = await ask(b);
    a.give('token', 1, await ask(a)); // it wrote last, and the other knows little of its clock
    await pass(world, 60);
    b.give('token', 1, mine);
    const again = await ask(b);
    expect((await ask(a)) - again).toBeGreaterThanOrEqual(every);
  });

  test('lets through no more than a bucket holds, in any stretch of time, and what flows in until it begins', async () => {
    await fc.assert(
      fc.asyncProperty(fc.nat(), weathers, async (seed, weather) => {
        const limit = { bucket: { rate: 50, burst: 5 } };
        const { starts } = await play({ seed, limit, weather, ms: 1500 });
        expect(starts.length).toBeGreaterThan(10);
        for (const [from, since] of starts.entries()) {
          for (const [more, until] of starts.slice(from).entries()) {
            const spanMs = until - since + LATE_MS_MAX;
            expect(more + 1).toBeLessThanOrEqual(5.001 + 0.05 * spanMs * 1.0005);
          }
        }
      }),
      { numRuns: 10 },
    );
  }, 120_000);

  describe.each(['deny', 'allow'] as const)('when nobody can decide: %s', (onUnavailable) => {
    const isIn = onUnavailable === 'allow';

    function unreachable(swap: RegisterServer['swap']) {
      const clock = new VirtualClock(1_000_000);
      const server = { swap, lease: async () => 'lease', close() {} };
      const options = { prefix: '/', deadlineMs: DEADLINE_MS, slackMs: SLACK_MS, onUnavailable };
      const setting = {
        ...{ name: 'api', isNamed: true, clock, random: seededRandom(1), keysMax: 10 },
        ...{ waitersMax: 10, keepAlive: false, onRoom() {}, onReach() {} },
      };
      const policy = policyOf({ bucket: { rate: 1, burst: 5 } }, seededRandom(1));
      return { clock, share: new RegisterShare(policy, setting, server, options) };
    }

    test('every way to ask is told the same, and none of it is given to others', async () => {
      const { share } = unreachable(() => Promise.reject(new Error('no quorum')));
      expect(await share.ask('k', 1)).toMatchObject({
        decision: { verdict: onUnavailable },
        isMakeshift: true,
      });
      expect(await share.askLine('k', [1, 1])).toMatchObject({
        granted: isIn ? 1 : 0,
        refused: isIn ? undefined : { verdict: 'deny', retryAfterMs: 500 },
        isMakeshift: true,
      });
      expect(await share.take('k', 3)).toBe(isIn ? 1 : 0);
      expect(await share.take('k', 0.5)).toBe(0);
      expect(await share.spare('k', 3, 0)).toBe(0);
      await share.gain('k', 3, 5); // lost, as if it had not come
      expect(await share.look('k')).toBeUndefined();
      expect(share.isReachable).toBe(false);
      await share.close();
    });

    test('too much at once is answered at once, and is no reason to think it gone', async () => {
      const { share } = unreachable(() => new Promise(() => {}));
      for (let n = 0; n < 10_000; n++) void share.ask(`key ${n}`, 1);
      expect((await share.ask('one more', 1)).decision.verdict).toBe(onUnavailable);
      expect(share.isReachable).toBe(true);
      await share.close();
    });
  });

  test('uses nearly all of it when the weather is fine', async () => {
    const limit = { spacing: { every: 100 } };
    const weather = { lost: 0, slowMs: 5, heldUp: 0 };
    const { starts } = await play({ seed: 1, limit, weather });
    const use = (100 * (starts.length - 1)) / (starts[starts.length - 1] - starts[0]);

    expect(use).toBeGreaterThan(0.85);
  }, 60_000);
});
