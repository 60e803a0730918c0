import { describe, expect, onTestFinished, test, vi } from 'vitest';
import type { RemoteBackend } from '../backends/remote-backend.ts';
import { seededRandom } from '../core/random.ts';
import type { Limit } from '../policies/limit.ts';
import { lockout } from '../policies/lockout.ts';
import type { State } from '../policies/policy.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { all } from './composite-limiter.ts';
import { limiter } from './limiter.ts';

const THREE = { lockout: { after: 3, lock: ['1m', '5m'] } } as const;

function setUp(limit: Limit = THREE, name = 'login') {
  const clock = new VirtualClock(1_700_000_000_000);
  return { clock, api: limiter({ name, limit, clock, random: seededRandom(1) }) };
}

describe('limiter with a lockout', () => {
  test('report: three failures lock the key; inspect and statistics say so, until when', () => {
    const { api, clock } = setUp();
    for (let n = 0; n < 3; n++) {
      expect(api.check('alice').verdict).toBe('allow');
      api.report('alice', 'failure');
    }
    expect(api.check('alice')).toEqual({ verdict: 'deny', retryAfterMs: 60_000, reason: 'locked' });
    expect(api.tryAcquire('alice')).toMatchObject({ reason: 'locked', retryAfterMs: 60_000 });
    const locked = { by: 'login', opensInMs: 60_000, lockedMs: 60_000, locks: 1, failures: 3 };
    expect(api.inspect('alice')).toMatchObject(locked);
    expect(api.stats()).toMatchObject({ allowed: 3, denied: 2, locked: 2 });
    expect(api.check('bob').verdict).toBe('allow');
    clock.advance(60_000);
    expect(api.check('alice').verdict).toBe('allow');
  });

  test('tryAcquire: 100 logins in flight at once get three guesses, and one success gives them back', () => {
    const { api } = setUp();
    const entries = Array.from({ length: 100 }, () => api.tryAcquire('alice'));
    const permits = entries.filter((entry) => entry.verdict === 'allow');
    expect(permits.length).toBe(3);
    permits[0].settle({ attempt: 'failure' });
    permits[1].settle({ attempt: 'success' });
    expect(api.inspect('alice')).toMatchObject({ remaining: 2, failures: 1, locks: 0 });
    permits[2].settle({ outcome: 'ignored' });
    expect(api.inspect('alice')).toMatchObject({ remaining: 3, failures: 0 });
  });

  test('settle: ok without an attempt is no success: middleware settles every response as ok', () => {
    const { api } = setUp();
    for (let n = 0; n < 3; n++) {
      const entry = api.tryAcquire('alice');
      if (entry.verdict === 'allow') entry.settle();
    }
    expect(api.check('alice')).toMatchObject({ reason: 'locked' });
  });

  test('acquire: a call waits until the key opens', async () => {
    const { api, clock } = setUp();
    for (let n = 0; n < 3; n++) api.report('alice', 'failure');
    expect(await api.acquire('alice', 1, { wait: '30s' })).toMatchObject({ reason: 'too-long' });
    const entry = api.acquire('alice', 1, { wait: '2m' });
    clock.advance(60_000);
    expect((await entry).verdict).toBe('allow');
  });

  test('report and settle: refuse other words, and a limit without a lockout', () => {
    const { api } = setUp();
    expect(() => api.report('alice', 'failed' as never)).toThrow(
      /`attempt` to be one of success, failure, got "failed"/,
    );
    expect(() => api.settle('alice', { attempt: 'ok' as never })).toThrow(/`attempt` to be one/);
    expect(() => api.report(7 as never, 'failure')).toThrow(/`key` to be a string/);
    const bucket = setUp({ bucket: { rate: 1 } }).api;
    expect(() => bucket.report('alice', 'failure')).toThrow(/`limit` to be a lockout .*"bucket"/);
    expect(() => all([bucket]).report('alice', 'failure')).toThrow(/`components` to be a lockout/);
  });

  test('all: per user and per address in one check, and one report for both', () => {
    const { api: user, clock } = setUp(THREE, 'user');
    const ip = limiter({
      name: 'ip',
      limit: { lockout: { after: 4, onSuccess: 'return' } },
      clock,
    });
    const login = all([
      { limiter: user, key: (key) => key.split(' ')[0] },
      { limiter: ip, key: (key) => key.split(' ')[1] },
    ]);
    for (const name of ['alice', 'bob', 'carol']) {
      expect(login.check(`${name} 10.0.0.1`).verdict).toBe('allow');
      login.report(`${name} 10.0.0.1`, 'failure');
    }
    expect(login.check('dave 10.0.0.1').verdict).toBe('allow');
    expect(login.check('erin 10.0.0.1')).toMatchObject({ verdict: 'deny', reason: 'locked' });
    expect(user.inspect('erin').failures).toBe(0); // a refused call is charged nowhere
    login.report('dave 10.0.0.1', 'success');
    expect(ip.inspect('10.0.0.1')).toMatchObject({ remaining: 1, failures: 3, locks: 0 });
    expect(login.tryAcquire('erin 10.0.0.1').verdict).toBe('allow');
    expect(login.tryAcquire('erin 10.0.0.1')).toMatchObject({ reason: 'locked', limit: 'ip' });
  });

  test('change of numbers: a locked key stays locked', () => {
    const { api } = setUp();
    for (let n = 0; n < 3; n++) api.report('alice', 'failure');
    const change = (api as unknown as { prepareChange(limit: Limit): () => void }).prepareChange;
    change.call(api, { lockout: { after: 9, lock: '2m' } })();
    expect(api.check('alice')).toMatchObject({ reason: 'locked', retryAfterMs: 60_000 });
    expect(api.check('bob')).toEqual({ verdict: 'allow', remaining: 8 });
  });
});

describe('report of a key that no check counted', () => {
  const warnings = () => {
    const emitted = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    onTestFinished(() => emitted.mockRestore());
    return () => emitted.mock.calls.map(([text]) => String(text));
  };

  test('warns once per limiter, with key and limit', () => {
    const { api } = setUp(THREE, 'wrong key');
    const emitted = warnings();
    api.check('192.0.2.1');
    api.report('192.0.2.1', 'success');
    expect(emitted()).toEqual([]);
    for (const key of ['::ffff:192.0.2.1', '::ffff:192.0.2.2']) api.report(key, 'success');
    expect(emitted()).toEqual([
      expect.stringMatching(/limit "wrong key".*report of key "::ffff:192.0.2.1"/),
    ]);
  });

  test('all: warns of the part whose key differs', () => {
    const parts = ['user part', 'address part'].map((name) => setUp(THREE, name).api);
    const [user, address] = parts;
    const emitted = warnings();
    const login = all([
      { limiter: user, key: (key) => key.split(' ')[0] },
      { limiter: address, key: (key) => key.split(' ')[1] },
    ]);
    login.check('alice 192.0.2.1');
    login.report('alice ::ffff:192.0.2.1', 'success');
    expect(emitted()).toEqual([expect.stringContaining('limit "address part"')]);
  });

  test('is no warning where the key was counted: a second report, a lock, or a limit that never checks', () => {
    const { api } = setUp(THREE, 'counted');
    const { api: onlyReports } = setUp(THREE, 'only reports');
    const emitted = warnings();
    api.check('alice');
    for (let n = 0; n < 2; n++) api.report('alice', 'success');
    for (let n = 0; n < 3; n++) api.check('bob');
    api.report('bob', 'success');
    onlyReports.report('carol', 'failure');
    expect(emitted()).toEqual([]);
  });

  test('a remote limiter warns too, by the state before the report', async () => {
    const emitted = warnings();
    const policy = lockout(THREE.lockout);
    const states = new Map<string, State>();
    const stateOf = (key: string): State => {
      const state = states.get(key) ?? new Float64Array(policy.width);
      if (!states.has(key)) policy.init(state, 0, 0);
      states.set(key, state);
      return state;
    };
    const backend: Partial<RemoteBackend> = {
      check: async (key, cost) => ({
        decision: policy.check(stateOf(key), 0, cost, 0),
        decidedAt: 0,
      }),
      report: async (key, report, count) =>
        void policy.update(stateOf(key), 0, { report, count }, 0),
      readState: async (key) => ({ state: stateOf(key).slice(), at: 0 }),
    };
    const create = () => backend as RemoteBackend;
    const api = limiter({
      name: 'remote report',
      limit: THREE,
      backend: { isRemote: true, create },
    });
    await api.check('alice');
    await api.report('alice', 'success');
    expect(emitted()).toEqual([]);
    await api.report('bob', 'success');
    expect(emitted()).toEqual([expect.stringContaining('limit "remote report"')]);
  });
});

describe('limiter with a lockout on refusals', () => {
  const ON_REFUSAL: Limit = {
    all: [
      { bucket: { rate: '1/s', burst: 1 } },
      { lockout: { on: 'refusal', after: 3, lock: '1m' } },
    ],
  };

  test('check: the third refusal locks, and is counted by its rule', () => {
    const { api } = setUp(ON_REFUSAL);
    const decisions = Array.from({ length: 5 }, () => api.check('alice'));
    expect(decisions.map((one) => ('rule' in one ? one.rule : ''))).toEqual([
      '',
      'bucket',
      'bucket',
      'lockout',
      'lockout',
    ]);
    expect(api.stats()).toMatchObject({ locked: 2, deniedByRule: { bucket: 2, lockout: 2 } });
    expect(() => api.report('alice', 'failure')).toThrow(/`limit` to be a lockout/);
  });

  test('peek: counts no refusal', () => {
    const { api } = setUp(ON_REFUSAL);
    api.check('alice');
    for (let n = 0; n < 9; n++) expect(api.peek('alice')).toMatchObject({ retryAfterMs: 1000 });
  });

  test('acquire: waiting is no refusal; a wait that ends without a permit is one', async () => {
    const { api, clock } = setUp(ON_REFUSAL);
    api.check('alice');
    const waiting = Array.from({ length: 5 }, () => api.acquire('alice'));
    for (let n = 0; n < 50; n++) {
      clock.advance(100);
      await Promise.resolve();
    }
    expect((await Promise.all(waiting)).every(({ verdict }) => verdict === 'allow')).toBe(true);
    expect(api.inspect('alice').failures).toBe(0);
    for (let n = 0; n < 3; n++)
      expect(await api.acquire('alice', 1, { wait: false })).toMatchObject({ reason: 'too-long' });
    expect(api.inspect('alice')).toMatchObject({ lockedMs: 60_000 });
  });

  test('acquire: waiting in all([...]) is no refusal; a wait that ends without a permit is one', async () => {
    const { api: guarded, clock } = setUp(ON_REFUSAL);
    const total = limiter({ name: 'total', limit: { bucket: { rate: '1/s', burst: 9 } }, clock });
    const api = all([guarded, { limiter: total, key: '*' }]);
    api.check('alice');
    const waiting = Array.from({ length: 5 }, () => api.acquire('alice'));
    for (let n = 0; n < 50; n++) {
      clock.advance(100);
      for (let turn = 0; turn < 9; turn++) await Promise.resolve();
    }
    expect((await Promise.all(waiting)).every(({ verdict }) => verdict === 'allow')).toBe(true);
    expect(guarded.inspect('alice').failures).toBe(0);
    expect(await api.acquire('alice', 1, { wait: false })).toMatchObject({ reason: 'too-long' });
    expect(guarded.inspect('alice').failures).toBe(1);
  });

  test('acquire of several limiters: waiting is no refusal there either', async () => {
    const { api, clock } = setUp(ON_REFUSAL);
    const total = limiter({ limit: { bucket: { rate: 100 } }, clock });
    const both = all([total, api]);
    both.check('alice');
    const waiting = Array.from({ length: 5 }, () => both.acquire('alice'));
    for (let n = 0; n < 60; n++) {
      clock.advance(100);
      await Promise.resolve();
    }
    expect((await Promise.all(waiting)).every(({ verdict }) => verdict === 'allow')).toBe(true);
    expect(api.inspect('alice').failures).toBe(0);
  });

  test('statuses: no quota is shown while the key is open', () => {
    const { api } = setUp(ON_REFUSAL);
    expect(api.inspect('alice').remaining).toBe(1);
    expect(api.check('alice')).toEqual({ verdict: 'allow', remaining: 0 });
  });
});
