/** The rules in Lua are the rules in TypeScript: the same asks, the same answers, the same bytes. */

import fc from 'fast-check';
import { createClient, RESP_TYPES } from 'redis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { redisServer, type Service, startRedis } from '../../../test/support/services.ts';
import { type Decision, NEVER, type Outcome } from '../../core/decision.ts';
import { seededRandom } from '../../core/random.ts';
import { createPolicy, type Limit } from '../../policies/limit.ts';
import { type Policy, takeUpTo } from '../../policies/policy.ts';
import { scriptOf } from './lua-script.ts';
import { decisionOf, type ReplyValue } from './reply.ts';

const isThere = redisServer() !== undefined;

type Step =
  | {
      readonly op: 'a' | 'n' | 't' | 'h';
      readonly line?: undefined;
      readonly amount: number;
      readonly afterMs: number;
    }
  | {
      /** Above a line: takes; up to it: gains. */
      readonly op: 't' | 'g';
      readonly amount: number;
      readonly line: number;
      readonly afterMs: number;
    }
  | {
      readonly op: 's';
      readonly outcome: Outcome;
      readonly amount: number;
      readonly used: number;
      readonly agoMs: number;
      readonly afterMs: number;
    };

const LIMITS: Record<string, readonly Limit[]> = {
  bucket: [
    { bucket: { rate: '10/s', burst: 3 } },
    { bucket: { rate: '1/6s' } },
    { bucket: { rate: 0.7, burst: 2.5, maxDebt: 4 } },
    { bucket: { rate: '1000/s', burst: 7 } },
  ],
  spacing: [
    { spacing: { every: '250ms' } },
    { spacing: { every: '6s', reserve: 3 } },
    { spacing: { every: 0.3, reserve: 2, expire: 100 } },
  ],
  ramp: [
    { ramp: { min: 1, max: 9, over: '4s' } },
    { ramp: { min: 2, max: 5, over: '10s', mode: 'scheduled' } },
    { ramp: { min: 0.5, max: 6, over: '3s', mode: 'only-if-used', threshold: 60 } },
    { ramp: { min: 2, max: 8, over: '3s', mode: 'go-back-n', coolDown: '2s', rampDown: 50 } },
    { ramp: { min: 3, max: 3, over: '1s' } },
  ],
  all: [
    { all: [{ bucket: { rate: '10/s', burst: 3 } }, { bucket: { rate: '20/m', burst: 8 } }] },
    { all: [{ spacing: { every: 100, reserve: 2 } }, { bucket: { rate: 5, burst: 4 } }] },
    {
      all: [
        { spacing: { every: 300, reserve: 4 } },
        { spacing: { every: 100, reserve: 1 } },
        { ramp: { min: 2, max: 8, over: '3s' } },
      ],
    },
  ],
};

/** The same steps in this process, on numbers of its own. */
function inJs(policy: Policy, steps: readonly Step[], startMs: number) {
  const state = new Float64Array(policy.width);
  const answers: Decision[] = [];
  let now = startMs;
  policy.init(state, 0, now + steps[0].afterMs);
  for (const step of steps) {
    now += step.afterMs;
    if (step.op === 's') {
      const { outcome, amount: cost, used, agoMs } = step;
      policy.settle(state, 0, { outcome, cost, used, dueAt: now - agoMs }, now);
    } else if (step.op === 'h') {
      policy.update(state, 0, { hits: step.amount }, now);
    } else if (step.op === 'g') {
      policy.credit?.(state, 0, step.amount, step.line, now);
    } else if (step.op === 't') {
      const granted = takeUpTo(policy, state, 0, Math.ceil(step.amount), now, step.line);
      answers.push({ verdict: 'allow', remaining: granted });
    } else {
      answers.push(askOnce(policy, state, step, now));
    }
  }
  return { state, answers };
}

function askOnce(policy: Policy, state: Float64Array, step: Step, now: number): Decision {
  const before = state.slice();
  const decision = policy.check(state, 0, step.amount, now);
  if (step.op === 'a' || decision.verdict !== 'wait') return decision;
  state.set(before);
  return { verdict: 'deny', retryAfterMs: Math.ceil(decision.waitMs) };
}

function textOf(step: Step, now: number): string {
  if (step.op === 's') {
    return `s${step.outcome} ${step.amount} ${step.used} ${now - step.agoMs}`;
  }
  const amount = step.op === 't' ? Math.ceil(step.amount) : step.amount;
  return `${step.op}${amount}${step.line === undefined ? '' : ` ${step.line}`}`;
}

describe.skipIf(!isThere)('the rules in Lua', () => {
  let service: Service;
  let client: ReturnType<typeof createClient>;

  beforeAll(async () => {
    service = await startRedis();
    client = createClient({ socket: { port: service.port, host: '127.0.0.1' } });
    await client.connect();
  });
  afterAll(async () => {
    client.destroy();
    await service.stop();
  });

  /** Each step a call of its own, at a time of its own, all sent at once. */
  async function inLua(policy: Policy, steps: readonly Step[], startMs: number, key: string) {
    const { specs = [], width } = policy;
    const full = await client.scriptLoad(scriptOf(specs, width));
    const checkOnly = await client.scriptLoad(scriptOf(specs, width, 'check-only'));
    let now = startMs;
    const calls = steps.map((step) => {
      now += step.afterMs;
      const args = [String(now), textOf(step, now)];
      return client.evalSha(step.op === 'a' ? checkOnly : full, { keys: [key], arguments: args });
    });
    const replies = (await Promise.all(calls)) as ReplyValue[][];
    const answers = replies
      .filter((_, n) => !['s', 'h', 'g'].includes(steps[n].op))
      .map(([, told]) => decisionOf(told));
    const state = await bytesOf(key);
    await client.del(key);
    return { answers, state };
  }

  /** What Redis keeps of a key, as numbers; nothing if it keeps nothing. */
  async function bytesOf(key: string): Promise<number[] | undefined> {
    const bytes = client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
    const packed = (await bytes.get(key)) as Buffer | null;
    if (packed === null) return undefined;
    return Array.from({ length: packed.length / 8 }, (_, n) => packed.readDoubleLE(n * 8));
  }

  // Times a fraction of a microsecond apart cannot come from Redis, so they are whole microseconds.
  const micros = fc.integer({ min: 0, max: 3_000_000 }).map((us) => us / 1000);
  const soon = fc.oneof(micros, fc.integer({ min: 0, max: 400 }), fc.constant(0));
  const amount = fc.oneof(fc.integer({ min: 0, max: 5 }), fc.constantFrom(0.5, 1.25, 2.75));
  const ask = fc.record({
    op: fc.constantFrom('a', 'a', 'n', 't', 'h') as fc.Arbitrary<'a'>,
    amount,
    afterMs: soon,
  });
  const settle = fc.record({
    op: fc.constant('s' as const),
    outcome: fc.constantFrom('ok', 'ignored', 'busy') as fc.Arbitrary<Outcome>,
    amount,
    used: amount,
    agoMs: fc.oneof(fc.constant(0), micros),
    afterMs: soon,
  });
  const move = fc.record({ op: fc.constantFrom('t', 'g'), amount, line: amount, afterMs: soon });
  const stepsOf = (kind: string) => {
    const step = kind === 'bucket' ? fc.oneof(ask, ask, settle, move) : fc.oneof(ask, ask, settle);
    return fc.array(step as fc.Arbitrary<Step>, { minLength: 1, maxLength: 25 });
  };

  const cases = Object.entries(LIMITS).flatMap(([kind, limits]) =>
    limits.map((limit) => [kind, JSON.stringify(limit), limit] as const),
  );
  let nth = 0;

  test.each(cases)(
    '%s %s answers as in TypeScript',
    async (kind, _name, limit) => {
      const policy = createPolicy(limit, seededRandom(1));
      await fc.assert(
        fc.asyncProperty(
          stepsOf(kind),
          fc.constantFrom(1_000_000, 1_700_000_000_123.457),
          async (all, start) => {
            const js = inJs(policy, all, start);
            const lua = await inLua(policy, all, start, `k${++nth}`);
            expect(lua.answers).toEqual(js.answers);
            expect(lua.state).toEqual([...js.state]);
          },
        ),
        { numRuns: 700 },
      );
    },
    60_000,
  );

  test('a clock set back keeps everybody waiting, set forward lets one through early', async () => {
    const policy = createPolicy({ spacing: { every: '6s' } }, seededRandom(1));
    const asks = [0, -5000, 11_000, 60_000, 0].map(
      (afterMs): Step => ({ op: 'a', amount: 1, afterMs }),
    );
    const { answers } = await inLua(policy, asks, 1_000_000, 'stepped');
    expect(answers).toEqual([
      { verdict: 'allow', remaining: 0 },
      { verdict: 'deny', retryAfterMs: 11_000 }, // five seconds that are to come once more
      { verdict: 'allow', remaining: 0 },
      { verdict: 'allow', remaining: 0 },
      { verdict: 'deny', retryAfterMs: 6000 }, // and only one
    ]);
  });

  test('what comes from another bucket too late is lost', async () => {
    const { specs = [], width } = createPolicy(
      { bucket: { rate: 1e-9, burst: 9 } },
      seededRandom(1),
    );
    const full = await client.scriptLoad(scriptOf(specs, width));
    const call = (by: string, text: string) =>
      client.evalSha(full, { keys: ['late'], arguments: [by, text] }) as Promise<ReplyValue[]>;
    await call('', 't9');
    const [told] = await call('by 1', 'g5 4');
    expect(told).toMatch(/^late /);
    expect(await call('', 't9')).toEqual([expect.anything(), 0]);
    await call('', 'g5 4');
    expect(await call('', 't9')).toEqual([expect.anything(), 4]);
  });

  test('"never" has a name on both sides', async () => {
    const policy = createPolicy({ bucket: { rate: 1, burst: 2 } }, seededRandom(1));
    const { answers } = await inLua(policy, [{ op: 'a', amount: 3, afterMs: 0 }], 1000, 'never');
    expect(answers).toEqual([{ verdict: 'deny', retryAfterMs: NEVER }]);
  });
});
