/** Compares the rules in Lua with those in TypeScript: equal random sequences, decisions and bytes. */

import fc from 'fast-check';
import { createClient, RESP_TYPES } from 'redis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { borrowRedis } from '../../../test/support/borrowed-servers.ts';
import { runs } from '../../../test/support/runs.ts';
import { redisServer, type Service } from '../../../test/support/services.ts';
import { type Decision, NEVER, type Outcome } from '../../core/decision.ts';
import { seededRandom } from '../../core/random.ts';
import { createPolicy, type Limit } from '../../policies/limit.ts';
import { lendUpTo, type Policy, takeUpTo } from '../../policies/policy.ts';
import { namesOfRules } from '../../policies/rules.ts';
import { scriptOf } from './lua-script.ts';
import { decisionOf, type ReplyValue } from './reply.ts';

const hasRedis = redisServer() !== undefined;

type Step =
  | {
      readonly op: 'a' | 'n' | 't' | 'h' | Report;
      readonly level?: undefined;
      readonly amount: number;
      readonly afterMs: number;
    }
  | {
      /** Takes units above a level, or credits units up to it. */
      readonly op: 't' | 'g';
      readonly amount: number;
      readonly level: number;
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

/** A report of the lock-out. */
type Report = 'rsuccess ' | 'rfailure ' | 'rrefusal ';

const isReport = (op: string): op is Report => op.startsWith('r');

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
    { ramp: { min: 1, max: 9, over: '4s', resumeFor: '2s' } },
    { ramp: { min: 2, max: 8, over: '6s', mode: 'scheduled', resumeFor: '3s' } },
  ],
  window: [
    { window: { limit: 10, per: '2s' } },
    { window: { limit: 4, per: '1s', steps: 3 } },
    { window: { limit: 7, per: '700ms', steps: 21 } },
    { window: { limit: 2, per: 5 } },
    { window: { limit: 3, per: '1s', steps: 1 } },
    { window: { limit: 20, per: '4s', steps: 1000 } },
  ],
  quota: [
    { quota: { limit: 9, per: 'second' } },
    { quota: { limit: 5, per: 'minute', timeZone: 'Asia/Kathmandu' } },
    { quota: { limit: 12, per: 'hour', timeZone: 'Australia/Lord_Howe' } },
    { quota: { limit: 12, per: 'day', timeZone: 'Europe/Berlin', anchor: '2026-01-01T02:30' } },
    { quota: { limit: 7, per: 'week', timeZone: 'Africa/Cairo', weekStartsOn: 'sunday' } },
    { quota: { limit: 20, per: 'month', timeZone: 'America/St_Johns', anchor: 31 } },
    { quota: { limit: 20, per: 'year', anchor: '2024-02-29T12:00' } },
    { quota: { limit: 4, per: '90m', timeZone: 'America/Havana' } },
  ],
  lockout: [
    { lockout: { after: 5, within: '2s', lock: ['300ms', '1s', '3s'], forget: '4s' } },
    { lockout: { after: 3, within: '5s', lock: 700, forget: '5s', onSuccess: 'return' } },
    {
      all: [
        { bucket: { rate: 4, burst: 3 } },
        { lockout: { on: 'refusal', after: 2, within: '2s', lock: ['1s', '2s'], forget: '4s' } },
        { lockout: { after: 6, within: '2s', lock: '500ms', forget: '4s' } },
        { spacing: { every: 200, reserve: 1 } },
      ],
    },
  ],
  all: [
    { all: [{ quota: { limit: 9, per: 'second' } }, { spacing: { every: 100, reserve: 2 } }] },
    { all: [{ quota: { limit: 9, per: '2s' } }, { bucket: { rate: 5, burst: 4 } }] },
    { all: [{ bucket: { rate: '10/s', burst: 3 } }, { bucket: { rate: '20/m', burst: 8 } }] },
    { all: [{ spacing: { every: 100, reserve: 2 } }, { bucket: { rate: 5, burst: 4 } }] },
    {
      all: [
        { spacing: { every: 300, reserve: 4 } },
        { spacing: { every: 100, reserve: 1 } },
        { ramp: { min: 2, max: 8, over: '3s' } },
      ],
    },
    {
      all: [
        { window: { limit: 6, per: '2s', steps: 4 } },
        { spacing: { every: 300, reserve: 4 } },
        { window: { limit: 20, per: '5s' } },
        { bucket: { rate: 5, burst: 4 } },
      ],
    },
  ],
};

/** Runs the steps in this process, on a state of its own. */
function runInJs(policy: Policy, steps: readonly Step[], startMs: number) {
  const state = new Float64Array(policy.width);
  const decisions: Decision[] = [];
  let now = startMs;
  policy.init(state, 0, now + steps[0].afterMs);
  for (const step of steps) {
    now += step.afterMs;
    if (step.op === 's') {
      const { outcome, amount: cost, used, agoMs } = step;
      policy.settle(state, 0, { outcome, cost, used, dueAt: now - agoMs }, now);
    } else if (step.op === 'h') {
      policy.update(state, 0, { hits: step.amount }, now);
    } else if (isReport(step.op)) {
      const report = step.op.slice(1, -1) as 'success';
      policy.update(state, 0, { report, count: step.amount }, now);
    } else if (step.op === 'g') {
      policy.divide?.credit?.(state, 0, step.amount, step.level, now);
    } else if (step.op === 't') {
      const most = Math.ceil(step.amount);
      const granted =
        step.level === undefined
          ? takeUpTo(policy, state, 0, most, now)
          : lendUpTo(policy, state, 0, most, now, step.level);
      decisions.push({ verdict: 'allow', remaining: granted });
    } else {
      decisions.push(checkStep(policy, state, step, now));
    }
  }
  return { state, decisions };
}

function checkStep(policy: Policy, state: Float64Array, step: Step, now: number): Decision {
  const before = state.slice();
  const decision = policy.check(state, 0, step.amount, now);
  if (step.op === 'a' || decision.verdict !== 'wait') return decision;
  state.set(before);
  return { verdict: 'deny', retryAfterMs: Math.ceil(decision.waitMs) };
}

function commandOf(step: Step, now: number): string {
  if (step.op === 's') {
    return `s${step.outcome} ${step.amount} ${step.used} ${now - step.agoMs}`;
  }
  const amount = step.op === 't' ? Math.ceil(step.amount) : step.amount;
  return `${step.op}${amount}${step.level === undefined ? '' : ` ${step.level}`}`;
}

describe.skipIf(!hasRedis)('rules in Lua', () => {
  let service: Service;
  let client: ReturnType<typeof createClient>;

  beforeAll(async () => {
    service = await borrowRedis();
    client = createClient({ socket: { port: service.port, host: '127.0.0.1' } });
    await client.connect();
  });
  afterAll(async () => {
    client.destroy();
    await service.stop();
  });

  /** Runs each step as its own call with its own time, all sent at once. */
  async function runInLua(policy: Policy, steps: readonly Step[], startMs: number, key: string) {
    const full = await client.scriptLoad(scriptOf(policy));
    const checkOnly = await client.scriptLoad(scriptOf(policy, 'check-only'));
    let now = startMs;
    const calls = steps.map((step) => {
      now += step.afterMs;
      const args = [String(now), commandOf(step, now)];
      return client.evalSha(step.op === 'a' ? checkOnly : full, { keys: [key], arguments: args });
    });
    const replies = (await Promise.all(calls)) as ReplyValue[][];
    const decisions = replies
      .filter((_, n) => !['s', 'h', 'g'].includes(steps[n].op) && !isReport(steps[n].op))
      .map(([, reply]) => decisionOf(reply, namesOfRules(policy)));
    const state = await storedStateOf(key);
    await client.del(key);
    return { decisions, state };
  }

  /** The state of a key in Redis, if it has one. */
  async function storedStateOf(key: string): Promise<number[] | undefined> {
    const bytes = client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
    const packed = (await bytes.get(key)) as Buffer | null;
    if (packed === null) return undefined;
    return Array.from({ length: packed.length / 8 }, (_, n) => packed.readDoubleLE(n * 8));
  }

  // The clock of Redis counts whole microseconds.
  const micros = fc.integer({ min: 0, max: 3_000_000 }).map((us) => us / 1000);
  const afterMs = fc.oneof(micros, fc.integer({ min: 0, max: 400 }), fc.constant(0));
  const amount = fc.oneof(fc.integer({ min: 0, max: 5 }), fc.constantFrom(0.5, 1.25, 2.75));
  const check = fc.record({
    op: fc.constantFrom('a', 'a', 'n', 't', 'h') as fc.Arbitrary<'a'>,
    amount,
    afterMs,
  });
  const settle = fc.record({
    op: fc.constant('s' as const),
    outcome: fc.constantFrom('ok', 'ignored', 'busy') as fc.Arbitrary<Outcome>,
    amount,
    used: fc.oneof(amount, amount, fc.constantFrom(9, 1e6, 1e15)),
    agoMs: fc.oneof(fc.constant(0), micros),
    afterMs,
  });
  const report = fc.record({
    op: fc.constantFrom('rsuccess ', 'rfailure ', 'rfailure ', 'rrefusal ') as fc.Arbitrary<Report>,
    amount: fc.constantFrom(1, 1, 2),
    afterMs,
  });
  const move = fc.record({ op: fc.constantFrom('t', 'g'), amount, level: amount, afterMs });
  const settleOfUnknownTime = settle.map((step) => ({ ...step, agoMs: Number.NaN }));
  /** Over changes of the offset, and back. */
  const jump = fc.integer({ min: -40 * 86_400, max: 200 * 86_400 }).map((s) => s * 1000);
  const jumping = fc.record({ op: fc.constant('a' as const), amount, afterMs: jump });
  const OTHER_STEPS: Record<string, fc.Arbitrary<unknown>> = {
    bucket: move,
    window: fc.oneof(settleOfUnknownTime, move),
    quota: jumping,
    lockout: fc.oneof(check, report, report),
  };
  const stepsOf = (kind: string) => {
    const step = fc.oneof(check, check, settle, OTHER_STEPS[kind] ?? settle);
    return fc.array(step as fc.Arbitrary<Step>, { minLength: 1, maxLength: 40 });
  };

  const cases = Object.entries(LIMITS).flatMap(([kind, limits]) =>
    limits.map(
      (limit) => [kind, JSON.stringify(limit), createPolicy(limit, seededRandom(1))] as const,
    ),
  );
  const whole = createPolicy({ window: { limit: 20, per: '2s', steps: 5 } }, seededRandom(1));
  const part = whole.divide?.ofGroup?.(0.5, 300).policy ?? whole;
  cases.push(['window', 'that lends', part]);
  let nth = 0;

  test.each(cases)(
    '%s %s: same decisions and same bytes as in TypeScript',
    async (kind, _name, policy) => {
      await fc.assert(
        fc.asyncProperty(
          stepsOf(kind),
          fc.constantFrom(1_000_000, 1_700_000_000_123.457),
          async (steps, start) => {
            const js = runInJs(policy, steps, start);
            const lua = await runInLua(policy, steps, start, `k${++nth}`);
            expect(lua.decisions).toEqual(js.decisions);
            expect(lua.state).toEqual([...js.state]);
          },
        ),
        { numRuns: runs(150) },
      );
    },
  );

  test('spacing: a clock set back delays permits; set forward, it grants one early', async () => {
    const policy = createPolicy({ spacing: { every: '6s' } }, seededRandom(1));
    const steps = [0, -5000, 11_000, 60_000, 0].map(
      (afterMs): Step => ({ op: 'a', amount: 1, afterMs }),
    );
    const { decisions } = await runInLua(policy, steps, 1_000_000, 'stepped');
    expect(decisions).toEqual([
      { verdict: 'allow', remaining: 0 },
      { verdict: 'deny', retryAfterMs: 11_000 }, // five seconds pass twice
      { verdict: 'allow', remaining: 0 },
      { verdict: 'allow', remaining: 0 },
      { verdict: 'deny', retryAfterMs: 6000 }, // only one
    ]);
  });

  test('ramp: a level that is older than resumeFor begins again, and its key expires then', async () => {
    const limit = { ramp: { min: 10, max: 110, over: '10s', resumeFor: '1h' } };
    const policy = createPolicy(limit, seededRandom(1));
    const HOUR = 3_600_000;
    const steps = [0, 1000, HOUR, HOUR + 2000].map(
      (afterMs): Step => ({ op: 't', amount: 1000, afterMs }),
    );
    const { decisions } = await runInLua(policy, steps, 1_000_000, 'ramp');
    const got = decisions.map((decision) => decision.verdict === 'allow' && decision.remaining);
    expect(got).toEqual([10, 20, 30, 10]);
    const full = await client.scriptLoad(scriptOf(policy));
    await client.evalSha(full, { keys: ['ramp'], arguments: ['', 't5'] });
    const ttl = await client.pTTL('ramp');
    expect(ttl).toBeGreaterThan(HOUR);
    expect(ttl).toBeLessThanOrEqual(HOUR + 1001);
  });

  test('a late credit is lost', async () => {
    const policy = createPolicy({ bucket: { rate: 1e-9, burst: 9 } }, seededRandom(1));
    const full = await client.scriptLoad(scriptOf(policy));
    const call = (time: string, command: string) =>
      client.evalSha(full, { keys: ['late'], arguments: [time, command] }) as Promise<ReplyValue[]>;
    await call('', 't9');
    const [time] = await call('by 1', 'g5 4');
    expect(time).toMatch(/^late /);
    expect(await call('', 't9')).toEqual([expect.anything(), 0]);
    await call('', 'g5 4');
    expect(await call('', 't9')).toEqual([expect.anything(), 4]);
  });

  test('a repeated call executes give-backs, hits and credits once, and checks again', async () => {
    const policy = createPolicy({ bucket: { rate: 1e-9, burst: 9 } }, seededRandom(1));
    const full = await client.scriptLoad(scriptOf(policy));
    const run = (time: string, ...commands: string[]) => {
      const keys = commands.map(() => 'repeated');
      return client.evalSha(full, { keys, arguments: [time, ...commands] }) as Promise<
        ReplyValue[]
      >;
    };
    const [now] = await run('', 't9');
    const time = `by ${Number(now) + 60_000}`;
    for (const _ of ['call', 'repeat'])
      expect(await run(`${time} a/1`, 'signored 5 5 nan', 't2')).toEqual([expect.anything(), 0, 2]);
    expect(await run('', 't9')).toEqual([expect.anything(), 1]); // 5 returned, 4 taken
    for (const id of ['a/2', 'a/2', 'a/3']) await run(`${time} ${id}`, 'g1 9');
    expect(await run('', 't9')).toEqual([expect.anything(), 2]);
    for (const id of ['a/4', 'a/4']) await run(`${time} ${id}`, 'h3');
    await run('', 'signored 5 5 nan');
    expect(await run('', 't9')).toEqual([expect.anything(), 2]);
  });

  test('a give-back that arrives later than Redis remembers calls is not executed', async () => {
    const policy = createPolicy({ bucket: { rate: 1e-9, burst: 9 } }, seededRandom(1));
    const full = await client.scriptLoad(scriptOf(policy));
    const run = (time: string, command: string) =>
      client.evalSha(full, { keys: ['late give-back'], arguments: [time, command] });
    const [now] = (await run('', 't9')) as ReplyValue[];
    const after = (ms: number) => run(`by ${Number(now) - ms} b/${ms}`, 'signored 2 2 nan');
    expect(await after(9000)).toEqual([expect.stringMatching(/^late /), 0]);
    expect(await after(10_500)).toEqual([expect.stringMatching(/^late /), 'late']);
    expect(await run('', 't9')).toEqual([expect.anything(), 2]);
  });

  test('bucket: a cost above the burst is refused for good', async () => {
    const policy = createPolicy({ bucket: { rate: 1, burst: 2 } }, seededRandom(1));
    const { decisions } = await runInLua(
      policy,
      [{ op: 'a', amount: 3, afterMs: 0 }],
      1000,
      'never',
    );
    expect(decisions).toEqual([{ verdict: 'deny', retryAfterMs: NEVER }]);
  });
});
