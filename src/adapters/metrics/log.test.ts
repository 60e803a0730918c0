import { describe, expect, test, vi } from 'vitest';
import type { RemoteBackend, RemoteBackendFactory } from '../../backends/remote-backend.ts';
import { ConfigError } from '../../core/errors.ts';
import { all } from '../../limiter/composite-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limiter } from '../../limiter/sync-limiter.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { type LimitingFields, type LimitingKind, logLimiting } from './log.ts';

type Line = readonly [atMs: number, message: string];

/** A limit that lets one call through every second, and a log that says when each line came. */
function story(events?: readonly LimitingKind[]) {
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
    warn(message: string, own: LimitingFields) {
      lines.push([clock.now(), message]);
      fields.push(own);
    },
  };
  const stop = logLimiting(api, logger, events ? { events } : {});
  return { clock, api, lines, fields, stop };
}

const asks = (api: Limiter, count: number, key = 'alice'): void => {
  for (let n = 0; n < count; n++) api.check(key);
};

describe('a log of limiting', () => {
  test('the first is told at once, what follows in one line when five seconds are over', () => {
    const { clock, api, lines } = story();
    api.check('alice'); //         allowed: nothing to say
    expect(lines).toEqual([]);
    clock.advance(100);
    api.check('alice');
    expect(lines.splice(0)).toEqual([
      [100, 'limit "api": 1 denied; last key "alice", closed for another 900 ms'],
    ]);
    clock.advance(400);
    asks(api, 20); //            denied
    clock.advance(3_500);
    asks(api, 2, 'bob'); //      one allowed, one denied
    clock.advance(1_099);
    expect(lines).toEqual([]);
    clock.advance(1);
    expect(lines.splice(0)).toEqual([
      [5_100, 'limit "api": 21 denied within 3.5 s; last key "bob", open again by now'],
    ]);
  });

  test('a line every five seconds for as long as it lasts, and at once again after a rest', () => {
    const { clock, api, lines } = story();
    for (let n = 0; n < 140; n++) {
      asks(api, 10);
      clock.advance(100);
    }
    expect(lines.map(([at]) => at)).toEqual([0, 5_000, 10_000]);
    clock.advance(20_000);
    expect(lines.map(([at]) => at)).toEqual([0, 5_000, 10_000, 15_000]);
    asks(api, 2);
    expect(lines.map(([at]) => at)).toEqual([0, 5_000, 10_000, 15_000, 34_000]);
  });

  test('every event is in some line, and stop tells what is left', () => {
    const { clock, api, lines, fields, stop } = story();
    for (let n = 0; n < 70; n++) {
      asks(api, 3);
      clock.advance(100);
    }
    stop();
    expect(lines.map(([at]) => at)).toEqual([0, 5_000, 7_000]);
    const told = fields.reduce((sum, { count }) => sum + count, 0);
    expect(told).toBe(api.stats().denied);
    asks(api, 5);
    clock.advance(60_000);
    stop();
    expect(lines.length).toBe(3);
  });

  test('the same in fields, for machines', () => {
    const { clock, api, fields, stop } = story();
    asks(api, 2);
    clock.advance(200);
    asks(api, 4, 'alice');
    clock.advance(100);
    asks(api, 2, 'bob');
    stop();
    const none = { limit: 'api', waited: 0, expired: 0, availability: 0 };
    expect(fields).toEqual([
      { ...none, count: 1, denied: 1, spanMs: 0, key: 'alice', until: 1000 },
      { ...none, count: 5, denied: 5, spanMs: 100, key: 'bob', until: 1300 },
    ]);
  });

  test('a permit that was lost is told by default, one that waited if wanted', async () => {
    const quiet = story();
    const chatty = story(['waited', 'expired']);
    for (const { api, clock } of [quiet, chatty]) {
      void api.acquire('job');
      void api.acquire('job');
      await clock.advanceAsync(70_000);
    }
    expect(quiet.lines).toEqual([
      [60_000, 'limit "api": 1 expired; last key "job"'],
      [65_000, 'limit "api": 1 expired; last key "job"'],
    ]);
    expect(chatty.lines.map(([, message]) => message)).toEqual([
      'limit "api": 1 waited; last key "job"',
      'limit "api": 1 expired; last key "job"',
      'limit "api": 1 expired; last key "job"',
    ]);
  });

  test('says when nobody knows until when, and when it is for ever', () => {
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
    asks(sink, 2, 'db');
    small.check('whale', 9);
    expect(messages).toEqual([
      'limit "sink": 1 denied; last key "db", closed until a call settles',
      'limit "small": 1 denied; last key "whale", which can never fit',
    ]);
  });

  test('each limit has a line of its own', () => {
    const clock = new VirtualClock();
    const limit = { spacing: { every: '1s' } } as const;
    const [one, other] = ['one', 'other'].map((name) => limiter({ name, limit, clock }));
    const warn = vi.fn();
    logLimiting([one, other], { warn });
    asks(one, 5);
    asks(other, 5);
    expect(warn.mock.calls.map(([, { limit }]) => limit)).toEqual(['one', 'other']);
  });

  test('of several limiters in one, the one that said no is told', () => {
    const clock = new VirtualClock();
    const [user, everyone] = ['user', 'everyone'].map((name, n) =>
      limiter({ name, limit: { bucket: { rate: 1, burst: 2 + n } }, clock }),
    );
    const both = all([user, { limiter: everyone, key: '*' }]);
    const warn = vi.fn();
    logLimiting(both, { warn });
    asks(both, 3, 'alice');
    asks(both, 2, 'bob');
    expect(warn.mock.calls.map(([, { limit, key }]) => [limit, key])).toEqual([
      ['user', 'alice'],
      ['everyone', '*'],
    ]);
  });

  test('a key cannot forge a line or fill the log', () => {
    const { api, lines } = story();
    asks(api, 2, `eve\nlimit "api": all is well${'!'.repeat(1000)}`);
    expect(lines[0][1]).toMatch(/last key "eve\\nlimit \\"api\\": all is well!+…, closed/);
    expect(lines[0][1].length).toBeLessThan(160);
  });

  test('a logger that throws, now or later, breaks no decision and no alarm', async () => {
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
    asks(api, 3);
    await clock.advanceAsync(5_000);
    expect(calls).toBe(2);
    expect(warnings.mock.calls.map(([message]) => message)).toEqual([
      'a logger of limits failed: Error: the disk is full', // and that once a process
    ]);
    warnings.mockRestore();
  });

  test('a logger that asks the very limit it tells of does not go round in circles', () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { spacing: { every: '1h' } }, clock });
    let lines = 0;
    const warn = (): void => {
      lines++;
      api.check('alice');
    };
    logLimiting(api, { warn });
    asks(api, 2);
    expect(lines).toBe(1);
    clock.advance(20_000);
    expect(lines).toBe(5);
  });

  test('its alarm does not keep a process alive, and ends with it', () => {
    const alarms: boolean[] = [];
    const cancel = vi.fn();
    const wakeAt = (_at: number, _act: () => void, keepAlive: boolean) => {
      alarms.push(keepAlive);
      return cancel;
    };
    const api = limiter({ limit: { spacing: { every: '1s' } }, clock: { now: () => 0, wakeAt } });
    const stop = logLimiting(api, { warn() {} });
    asks(api, 2);
    expect(alarms).toEqual([false]);
    expect(cancel).not.toHaveBeenCalled();
    stop();
    expect(cancel).toHaveBeenCalledTimes(1);
  });

  describe('of a limit that somebody else decides', () => {
    /** One that can be lost and found by hand. */
    function remote(events?: readonly LimitingKind[]) {
      const clock = new VirtualClock();
      let setAvailable: (isAvailable: boolean, why?: unknown) => void = () => {};
      const decision = { decision: { verdict: 'deny', retryAfterMs: 500 }, decidedAt: 0 } as const;
      const backend: RemoteBackendFactory = {
        isRemote: true,
        create: (_policy, { onAvailability }) => {
          setAvailable = onAvailability;
          const told = { check: async () => decision, onUnavailable: 'deny' };
          return told as unknown as RemoteBackend;
        },
      };
      const api = limiter({ name: 'api', limit: { spacing: { every: '1s' } }, backend, clock });
      const lines: Line[] = [];
      const fields: LimitingFields[] = [];
      const warn = (message: string, own: LimitingFields): void => {
        lines.push([clock.now(), message]);
        fields.push(own);
      };
      logLimiting(api, { warn }, events ? { events } : {});
      return {
        clock,
        api,
        lines,
        fields,
        setAvailable: (isIt: boolean, why?: unknown) => setAvailable(isIt, why),
      };
    }

    test('an outage is told at once, whatever else is told, and how long it was', async () => {
      const { clock, api, lines, fields, setAvailable } = remote();
      await api.check('alice'); //    a line of its own
      clock.advance(100);
      setAvailable(false, new Error('no answer within 100 ms'));
      clock.advance(6_100);
      setAvailable(true);
      expect(lines).toEqual([
        [0, 'limit "api": 1 denied; last key "alice", closed for another 500 ms'],
        [100, 'limit "api": unavailable: "no answer within 100 ms", onUnavailable answers: deny'],
        [6_200, 'limit "api": available again after 6.1 s'],
      ]);
      const none = { limit: 'api', denied: 0, waited: 0, expired: 0, spanMs: 0, key: '' };
      const one = { count: 1, availability: 1 };
      const reason = 'no answer within 100 ms';
      expect(fields.slice(1)).toEqual([
        { ...none, ...one, isAvailable: false, reason, onUnavailable: 'deny' },
        { ...none, ...one, isAvailable: true },
      ]);
    });

    test('one that comes and goes does not fill the log, and its last state is told', () => {
      const { clock, lines, setAvailable } = remote();
      for (let n = 0; n < 40; n++) {
        setAvailable(n % 2 === 1, new Error('gone\nlimit "api": all is well'));
        clock.advance(100);
      }
      clock.advance(20_000);
      expect(lines).toEqual([
        [
          0,
          String.raw`limit "api": unavailable: "gone\nlimit \"api\": all is well", onUnavailable answers: deny`,
        ],
        [5_000, 'limit "api": available again after 0.1 s; 39 changes within 3.8 s'],
      ]);
    });

    test('not if nobody wants to know', () => {
      const { lines, setAvailable } = remote(['denied']);
      setAvailable(false, 'gone');
      expect(lines).toEqual([]);
    });
  });

  test('console will do', () => {
    const warn = vi.spyOn(console, 'warn').mockReturnValue();
    const api = limiter({ limit: { spacing: { every: '1h' } }, clock: new VirtualClock() });
    const stop = logLimiting(api, console, { every: '1m' });
    asks(api, 2);
    expect(warn.mock.calls[0][0]).toMatch(/^limit "spacing": 1 denied; /);
    warn.mockRestore();
    stop();
  });

  test.each([
    ['no logger', undefined, {}, /`logger` to be an object with warn or info, got nothing/],
    ['a logger that cannot', { error() {} }, {}, /`logger`/],
    ['no time', console, { every: 0 }, /`every` to be a duration longer than 0/],
    [
      'an unknown event',
      console,
      { events: ['allowed'] },
      /`events`.* denied, waited, expired, availability/,
    ],
    ['no events', console, { events: [] }, /`events`/],
    ['a misspelt option', console, { evry: '5s' }, /`evry` to be one of every, events/],
  ])('refuses %s', (_what, logger, options, message) => {
    const api = limiter({ limit: { spacing: { every: '1h' } } });
    expect(() => logLimiting(api, logger as never, options as never)).toThrow(message);
    expect(() => logLimiting({} as never, console)).toThrow(ConfigError);
  });
});
