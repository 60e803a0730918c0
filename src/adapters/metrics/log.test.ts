import { describe, expect, test, vi } from 'vitest';
import type { RemoteBackend, RemoteBackendFactory } from '../../backends/remote-backend.ts';
import { ConfigError } from '../../core/errors.ts';
import { all } from '../../limiter/composite-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limiter } from '../../limiter/limiter-interface.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { type LimitingFields, type LimitingKind, logLimiting } from './log.ts';

type Line = readonly [atMs: number, message: string];

/** A limit of one call per second, and the log lines with their times. */
function setUp(events?: readonly LimitingKind[]) {
  const clock = new VirtualClock();
  const api = limiter({
    name: 'api',
    limit: { spacing: { every: '1s' } },
    permitTimeout: '1m',
    clock,
  });
  const lines: Line[] = [];
  const fields: LimitingFields[] = [];
  const logger = {
    warn(message: string, given: LimitingFields) {
      lines.push([clock.now(), message]);
      fields.push(given);
    },
  };
  const stop = logLimiting(api, logger, events ? { events } : {});
  return { clock, api, lines, fields, stop };
}

const checks = (api: Limiter, count: number, key = 'alice'): void => {
  for (let n = 0; n < count; n++) api.check(key, 1, { willSettle: true });
};

describe('logLimiting', () => {
  test('logs the first event at once, and those that follow in one line after five seconds', () => {
    const { clock, api, lines } = setUp();
    api.check('alice'); //         allowed: not logged
    expect(lines).toEqual([]);
    clock.advance(100);
    api.check('alice');
    expect(lines.splice(0)).toEqual([
      [100, 'limit "api": 1 denied; last key "alice", retry in 900 ms'],
    ]);
    clock.advance(400);
    checks(api, 20); //            denied
    clock.advance(3_500);
    checks(api, 2, 'bob'); //      one allowed, one denied
    clock.advance(1_099);
    expect(lines).toEqual([]);
    clock.advance(1);
    expect(lines.splice(0)).toEqual([
      [5_100, 'limit "api": 21 denied within 3.5 s; last key "bob", retry now'],
    ]);
  });

  test('logs every five seconds while events come, and at once again after a pause', () => {
    const { clock, api, lines } = setUp();
    for (let n = 0; n < 140; n++) {
      checks(api, 10);
      clock.advance(100);
    }
    expect(lines.map(([at]) => at)).toEqual([0, 5_000, 10_000]);
    clock.advance(20_000);
    expect(lines.map(([at]) => at)).toEqual([0, 5_000, 10_000, 15_000]);
    checks(api, 2);
    expect(lines.map(([at]) => at)).toEqual([0, 5_000, 10_000, 15_000, 34_000]);
  });

  test('counts every event in a line; stop() logs what is pending', () => {
    const { clock, api, lines, fields, stop } = setUp();
    for (let n = 0; n < 70; n++) {
      checks(api, 3);
      clock.advance(100);
    }
    stop();
    expect(lines.map(([at]) => at)).toEqual([0, 5_000, 7_000]);
    const logged = fields.reduce((sum, { count }) => sum + count, 0);
    expect(logged).toBe(api.stats().denied);
    checks(api, 5);
    clock.advance(60_000);
    stop();
    expect(lines.length).toBe(3);
  });

  test('passes the same as structured fields', () => {
    const { clock, api, fields, stop } = setUp();
    checks(api, 2);
    clock.advance(200);
    checks(api, 4, 'alice');
    clock.advance(100);
    checks(api, 2, 'bob');
    stop();
    const none = { limit: 'api', waited: 0, expired: 0, availability: 0, decreased: 0 };
    expect(fields).toEqual([
      { ...none, count: 1, denied: 1, spanMs: 0, key: 'alice', until: 1000 },
      { ...none, count: 5, denied: 5, spanMs: 100, key: 'bob', until: 1300 },
    ]);
  });

  test('logs expired permits by default, and waits on request', async () => {
    const byDefault = setUp();
    const onRequest = setUp(['waited', 'expired']);
    for (const { api, clock } of [byDefault, onRequest]) {
      void api.acquire('job');
      void api.acquire('job');
      await clock.advanceAsync(70_000);
    }
    expect(byDefault.lines).toEqual([
      [60_000, 'limit "api": 1 expired; last key "job"'],
      [65_000, 'limit "api": 1 expired; last key "job"'],
    ]);
    expect(onRequest.lines.map(([, message]) => message)).toEqual([
      'limit "api": 1 waited; last key "job"',
      'limit "api": 1 expired; last key "job"',
      'limit "api": 1 expired; last key "job"',
    ]);
  });

  test('says that the limiter is closed', () => {
    const { api, lines } = setUp();
    api.close();
    api.check('alice');
    expect(lines).toEqual([[0, 'limit "api": 1 denied; last key "alice", the limiter is closed']]);
  });

  test('says when the retry time is unknown, and when the cost never fits', () => {
    const clock = new VirtualClock();
    const messages: string[] = [];
    const logger = {
      info(message: string, fields: LimitingFields) {
        messages.push(message);
        expect(fields).not.toHaveProperty('until');
      },
    };
    const sink = limiter({ name: 'sink', limit: { concurrency: 1 }, clock });
    const small = limiter({ name: 'small', limit: { bucket: { rate: 1, burst: 1 } }, clock });
    logLimiting([sink, small], logger);
    checks(sink, 2, 'db');
    small.check('whale', 9);
    expect(messages).toEqual([
      'limit "sink": 1 denied; last key "db", retry when a call settles',
      'limit "small": 1 denied; last key "whale", its cost can never fit',
    ]);
  });

  test('logs a line for each limit', () => {
    const clock = new VirtualClock();
    const limit = { spacing: { every: '1s' } } as const;
    const [one, other] = ['one', 'other'].map((name) => limiter({ name, limit, clock }));
    const warn = vi.fn();
    logLimiting([one, other], { warn });
    checks(one, 5);
    checks(other, 5);
    expect(warn.mock.calls.map(([, { limit }]) => limit)).toEqual(['one', 'other']);
  });

  test('names the limiter of a composite that refused', () => {
    const clock = new VirtualClock();
    const [user, everyone] = ['user', 'everyone'].map((name, n) =>
      limiter({ name, limit: { bucket: { rate: 1, burst: 2 + n } }, clock }),
    );
    const both = all([user, { limiter: everyone, key: '*' }]);
    const warn = vi.fn();
    logLimiting(both, { warn });
    checks(both, 3, 'alice');
    checks(both, 2, 'bob');
    expect(warn.mock.calls.map(([, { limit, key }]) => [limit, key])).toEqual([
      ['user', 'alice'],
      ['everyone', '*'],
    ]);
  });

  test('escapes and truncates keys', () => {
    const { api, lines } = setUp();
    checks(api, 2, `eve\nlimit "api": all is well${'!'.repeat(1000)}`);
    expect(lines[0][1]).toMatch(/last key "eve\\nlimit \\"api\\": all is well!+…, retry/);
    expect(lines[0][1].length).toBeLessThan(160);
  });

  test('a logger that throws or rejects breaks no decision and no timer', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { spacing: { every: '1s' } }, clock });
    const warnings = vi.spyOn(process, 'emitWarning').mockReturnValue();
    let calls = 0;
    logLimiting(api, {
      warn() {
        calls++;
        if (calls === 1) throw new Error('the disk is full');
        return Promise.reject(new Error('the network is gone'));
      },
    });
    expect(api.check('alice').verdict).toBe('allow');
    expect(api.check('alice').verdict).toBe('deny');
    checks(api, 3);
    await clock.advanceAsync(5_000);
    expect(calls).toBe(2);
    expect(warnings.mock.calls.map(([message]) => message)).toEqual([
      'the logger of logLimiting failed: the disk is full', // once per process
    ]);
    warnings.mockRestore();
  });

  test('a logger that calls the logged limit does not recurse', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { spacing: { every: '1h' } }, clock });
    let lines = 0;
    const warn = (): void => {
      lines++;
      api.check('alice');
    };
    logLimiting(api, { warn });
    checks(api, 2);
    expect(lines).toBe(1);
    clock.advance(20_000);
    expect(lines).toBe(5);
  });

  test('its timer does not keep the process alive, and stop() cancels it', () => {
    const timers: boolean[] = [];
    const cancel = vi.fn();
    const wakeAt = (_at: number, _callback: () => void, keepAlive: boolean) => {
      timers.push(keepAlive);
      return cancel;
    };
    const api = limiter({ limit: { spacing: { every: '1s' } }, clock: { now: () => 0, wakeAt } });
    const stop = logLimiting(api, { warn() {} });
    checks(api, 2);
    expect(timers).toEqual([false]);
    expect(cancel).not.toHaveBeenCalled();
    stop();
    expect(cancel).toHaveBeenCalledTimes(1);
  });

  describe('with a remote backend', () => {
    /** A limiter whose backend the test makes unavailable. */
    function remote(events?: readonly LimitingKind[]) {
      const clock = new VirtualClock();
      let setAvailable: (isAvailable: boolean, reason?: unknown) => void = () => {};
      const decision = { decision: { verdict: 'deny', retryAfterMs: 500 }, decidedAt: 0 } as const;
      const backend: RemoteBackendFactory = {
        isRemote: true,
        create: (_policy, { onAvailability }) => {
          setAvailable = onAvailability;
          const fake = { check: async () => decision, onUnavailable: 'deny' };
          return fake as unknown as RemoteBackend;
        },
      };
      const api = limiter({ name: 'api', limit: { spacing: { every: '1s' } }, backend, clock });
      const lines: Line[] = [];
      const fields: LimitingFields[] = [];
      const warn = (message: string, given: LimitingFields): void => {
        lines.push([clock.now(), message]);
        fields.push(given);
      };
      logLimiting(api, { warn }, events ? { events } : {});
      return {
        clock,
        api,
        lines,
        fields,
        setAvailable: (isAvailable: boolean, reason?: unknown) => setAvailable(isAvailable, reason),
      };
    }

    test('logs an outage at once, beside other lines, and its length when it is over', async () => {
      const { clock, api, lines, fields, setAvailable } = remote();
      await api.check('alice'); //    logged separately
      clock.advance(100);
      setAvailable(false, new Error('no reply within 100 ms'));
      clock.advance(6_100);
      setAvailable(true);
      expect(lines).toEqual([
        [0, 'limit "api": 1 denied; last key "alice", retry in 500 ms'],
        [100, 'limit "api": unavailable: "no reply within 100 ms", onUnavailable: deny'],
        [6_200, 'limit "api": available again after 6.1 s'],
      ]);
      const none = { limit: 'api', denied: 0, waited: 0, expired: 0, spanMs: 0, key: '' };
      const one = { count: 1, availability: 1, decreased: 0 };
      const reason = 'no reply within 100 ms';
      expect(fields.slice(1)).toEqual([
        { ...none, ...one, isAvailable: false, reason, onUnavailable: 'deny' },
        { ...none, ...one, isAvailable: true },
      ]);
    });

    test('logs a flapping backend at a bounded rate, with its last state', () => {
      const { clock, lines, setAvailable } = remote();
      for (let n = 0; n < 40; n++) {
        setAvailable(n % 2 === 1, new Error('gone\nlimit "api": all is well'));
        clock.advance(100);
      }
      clock.advance(20_000);
      expect(lines).toEqual([
        [
          0,
          String.raw`limit "api": unavailable: "gone\nlimit \"api\": all is well", onUnavailable: deny`,
        ],
        [5_000, 'limit "api": available again after 0.1 s; 39 changes within 3.8 s'],
      ]);
    });

    test('does not log availability if `events` leaves it out', () => {
      const { lines, setAvailable } = remote(['denied']);
      setAvailable(false, 'gone');
      expect(lines).toEqual([]);
    });
  });

  test('console as a logger: one line per event, with the fields in the same string', () => {
    const warn = vi.spyOn(console, 'warn').mockReturnValue();
    const api = limiter({ limit: { spacing: { every: '1h' } }, clock: new VirtualClock() });
    const stop = logLimiting(api, console, { every: '1m' });
    checks(api, 2, 'a%s\n\u001b[2J b');
    const [line, ...more] = warn.mock.calls[0];
    expect(line).toBe(
      'limit "spacing": 1 denied; last key "a%s\\n\\u001b[2J b", retry in 3600000 ms' +
        ' limit=spacing count=1 denied=1 spanMs=0 key="a%s\\n\\u001b[2J b" until=3600000',
    );
    expect(more).toEqual([]);
    warn.mockRestore();
    stop();
  });

  test.each([
    [
      'a missing logger',
      undefined,
      {},
      /`logger` to be an object with warn or info, got undefined/,
    ],
    ['a logger without warn and info', { error() {} }, {}, /`logger`/],
    ['an interval of 0', console, { every: 0 }, /`every` to be a duration longer than 0/],
    [
      'an unknown event',
      console,
      { events: ['allowed'] },
      /`events`.* denied, waited, expired, availability/,
    ],
    ['an empty list of events', console, { events: [] }, /`events`/],
    ['a misspelt option', console, { evry: '5s' }, /`evry` to be one of every, events/],
  ])('refuses %s', (_what, logger, options, message) => {
    const api = limiter({ limit: { spacing: { every: '1h' } } });
    expect(() => logLimiting(api, logger as never, options as never)).toThrow(message);
    expect(() => logLimiting({} as never, console)).toThrow(ConfigError);
  });
});
