import { execFile } from 'node:child_process';
import { EventEmitter } from 'node:events';
import { afterEach, describe, expect, test } from 'vitest';
import { openScreen } from '../src/cli/framework/screen.ts';
import { run } from '../src/cli/run.ts';
import { seededRandom } from '../src/core/random.ts';
import {
  daemonFixture,
  EPHEMERAL_PORTS,
  exchange,
  type RunningDaemon,
  waitUntil,
} from './support/daemon.ts';
import { runCliAtAsync } from './support/terminal.ts';
import { zipf } from './support/zipf.ts';

const { start, place, end } = daemonFixture();
afterEach(end);

const PORTS = EPHEMERAL_PORTS.map((port) => (port === 'off' ? '127.0.0.1:0' : port));

const startWith = (text: string, env?: NodeJS.ProcessEnv): Promise<RunningDaemon> =>
  start([...PORTS, '--config', place().file('sluice.yaml', text)], env);

const send = (daemon: RunningDaemon, key: string, count: number): Promise<string> =>
  exchange(daemon.addresses.line[0], `${key}\n`.repeat(count));

const urlOf = (daemon: RunningDaemon): string => `http://${daemon.addresses.http[0]}`;

interface Denied {
  readonly limit?: string;
  readonly reason?: string;
  readonly command?: string;
  readonly shadow?: boolean;
  readonly key: string;
  readonly denied: number;
  readonly error?: number;
  readonly rule?: string;
  readonly cost: number;
  readonly remaining?: number;
  readonly retryAfterMs: number | null;
}

interface Page {
  readonly limits: readonly { name: string; allowed: number; denied: number; shadow?: boolean }[];
  readonly reasons: Readonly<Record<string, number>>;
  readonly denied: readonly (Denied & { keys: readonly Denied[] })[];
  readonly called: readonly {
    limit?: string;
    command?: string;
    calls: number;
    keys: readonly { key: string; calls: number; error?: number }[];
  }[];
  readonly denials: readonly Denied[];
  readonly lastHours: readonly Denied[];
}

const get = async (daemon: RunningDaemon, path: string): Promise<Page> =>
  (await fetch(`${urlOf(daemon)}${path}`)).json() as Promise<Page>;

/** Runs a command as a process. */
async function spawned(...words: string[]): Promise<{ out: string; err: string; code: number }> {
  const args = ['dist/bin/sluice.js', ...words];
  return new Promise((resolve) => {
    execFile(process.execPath, args, (error, out, err) =>
      resolve({ out, err, code: Number(error?.code ?? 0) }),
    );
  });
}

/** Runs a command in this process, which is faster. */
async function sluice(...words: string[]): Promise<{ out: string; err: string; code: number }> {
  const { out, err, code } = await runCliAtAsync(80, words);
  return { out: `${out.join('\n')}\n`, err: `${err.join('\n')}\n`, code };
}

const MANY_CAUSES = `
deny: [mallory]
unmatched: deny
limits:
  api:
    all: [{ bucket: { rate: 100/s, burst: 100 } }, { bucket: { rate: 2/h, burst: 2 } }]
    match: 'user:*'
  trial: { bucket: { rate: 1/h, burst: 1 }, always: true, shadow: true, match: 'user:*' }
  total: { bucket: { rate: 3/h, burst: 3 }, per: limit, match: 'shared:*' }
  flights: { concurrency: 1, match: 'f*' }
  batches: { bucket: { rate: 1/h, burst: 1 }, match: 'b*' }
  strict: { bucket: { rate: 1/h, burst: 1 }, match: 's:*', deny: ['s:bad'] }
  far: { bucket: { rate: 1/s }, match: 'r*', redis: { url: 'redis://127.0.0.1:1', deadline: 50ms, onUnavailable: deny } }
`;

describe('GET /denials', () => {
  test('every cause over every protocol: key, limit, rule, reason, cost, what was left, when to retry', async () => {
    const daemon = await startWith(MANY_CAUSES);
    const http = urlOf(daemon);
    const check = (query: string) => fetch(`${http}/check?${query}`).then(({ status }) => status);
    await send(daemon, 'user:alice', 5);
    await send(daemon, 'mallory', 2);
    await send(daemon, 'nothing-matches', 1);
    await exchange(daemon.addresses.resp[0], 'SLUICE.CHECK * shared:x 2\r\n'.repeat(2));
    await exchange(daemon.addresses.resp[0], 'CL.THROTTLE k 0 1 3600\r\n'.repeat(4));
    expect([await check('key=f&hold=1'), await check('key=f&hold=1')]).toEqual([200, 503]);
    expect([await check('key=s:1'), await check('key=s:1'), await check('key=s:bad')]).toEqual([
      200, 429, 403,
    ]);
    expect(await check('key=r1')).toBe(503);
    for (let n = 0; n < 2; n++) await fetch(`${http}/take-up-to?key=b1&max=5`, { method: 'POST' });
    const { denials } = await get(daemon, '/denials');
    const found = denials.map(({ key, denied, cost, remaining, retryAfterMs, ...cause }) => ({
      ...Object.fromEntries(Object.entries(cause).filter(([name]) => !name.endsWith('At'))),
      key,
      denied,
    }));
    const expected = [
      { limit: 'api', rule: 'bucket-2', key: 'user:alice', denied: 3 },
      { limit: 'trial', shadow: true, key: 'user:alice', denied: 1 },
      { reason: 'deny-list', key: 'mallory', denied: 2 },
      { reason: 'unmatched', key: 'nothing-matches', denied: 1 },
      { limit: 'total', key: 'shared:x', denied: 1 },
      { command: 'CL.THROTTLE', key: 'k', denied: 3 },
      { limit: 'flights', key: 'f', denied: 1 },
      { limit: 'strict', key: 's:1', denied: 1 },
      { limit: 'strict', reason: 'deny-list', key: 's:bad', denied: 1 },
      { limit: 'far', reason: 'unavailable', key: 'r1', denied: 1 },
      { limit: 'batches', key: 'b1', denied: 1 },
    ];
    expect(found).toHaveLength(expected.length);
    expect(found).toEqual(expect.arrayContaining(expected));
    const shared = denials.find(({ key }) => key === 'shared:x');
    expect(shared).toMatchObject({ cost: 2, remaining: 1 });
    expect(shared?.retryAfterMs).toBeGreaterThan(1_000_000);
    expect(denials.find(({ key }) => key === 'mallory')?.retryAfterMs).toBeNull();
  });

  test('by key, limit and time; a mistake in the query is explained', async () => {
    const daemon = await startWith(MANY_CAUSES);
    await send(daemon, 'user:alice', 3);
    await send(daemon, 'user:bob', 4);
    const alice = await get(daemon, '/denials?key=user:alice');
    expect(alice.denials.map(({ key }) => key)).toEqual(['user:alice', 'user:alice']);
    expect(alice.lastHours.map(({ limit, denied }) => [limit, denied])).toEqual(
      expect.arrayContaining([
        ['api', 1],
        ['trial', 1],
      ]),
    );
    expect((await get(daemon, '/denials?limit=api&max=1')).denials).toHaveLength(1);
    expect((await get(daemon, '/denials?limit=total')).denials).toEqual([]);
    for (const query of ['since=later', 'max=0', 'max=5000', 'keys=a', 'key=a&key=b'])
      expect((await fetch(`${urlOf(daemon)}/denials?${query}`)).status, query).toBe(400);
    expect((await fetch(`${urlOf(daemon)}/top?span=week`)).status).toBe(400);
  });

  test('with a token: needs it', async () => {
    const daemon = await startWith('{}', { SLUICE_ADMIN_TOKEN: 'a-token-of-some-length' });
    expect((await fetch(`${urlOf(daemon)}/top`)).status).toBe(401);
    expect((await fetch(`${urlOf(daemon)}/denials`)).status).toBe(401);
  });
});

describe('GET /top', () => {
  test('Zipf traffic over 100,000 keys: the top 10 are the true ones, and counts are within the error', async () => {
    const daemon = await startWith(
      'overload: off\nlimits: { api: { bucket: { rate: 1/d, burst: 1 } } }\n',
    );
    const draw = zipf(100_000, seededRandom(5));
    const ranks = Array.from({ length: 300_000 }, draw);
    const lines = ranks.map((rank) => `client-${rank}\n`).join('');
    const replies = await exchange(daemon.addresses.line[0], lines);
    const truth = new Map<string, number>();
    for (const [n, rank] of ranks.entries()) {
      const key = `client-${rank}`;
      if (replies.startsWith('NO', n * 3)) truth.set(key, (truth.get(key) ?? 0) + 1);
    }
    const expected = [...truth].sort((a, b) => b[1] - a[1]).slice(0, 10);
    const { denied, called, limits } = await get(daemon, '/top?span=hour');
    const sum = [...truth.values()].reduce((total, count) => total + count, 0);
    expect(limits).toMatchObject([{ name: 'api', allowed: 300_000 - sum, denied: sum }]);
    expect(denied[0]).toMatchObject({ limit: 'api', denied: sum });
    expect(denied[0].keys.map(({ key }) => key)).toEqual(expected.map(([key]) => key));
    for (const { key, denied: count, error = 0 } of denied[0].keys) {
      expect(Math.abs(count - (truth.get(key) ?? 0)), key).toBeLessThanOrEqual(error);
      expect(error, key).toBeLessThan(sum / 200);
    }
    // A flood of a second: one call in up to 64 is counted. Three times the error are six standard deviations.
    const calls = new Map<string, number>();
    for (const rank of ranks) calls.set(`client-${rank}`, (calls.get(`client-${rank}`) ?? 0) + 1);
    expect(called[0].keys[0].key).toBe('client-0');
    for (const { key, calls: count, error = 0 } of called[0].keys) {
      expect(Math.abs(count - (calls.get(key) ?? 0)), key).toBeLessThanOrEqual(3 * error);
      expect(error, key).toBeLessThan(300_000 / 50);
    }
  });
});

describe('shadow mode', () => {
  const SHADOW = 'limits: { trial: { bucket: { rate: 1/h, burst: 1 }, shadow: true } }\n';

  test('metrics carry shadow="true", the log line is no warning, and totals leave them out', async () => {
    const daemon = await startWith(`log: { denials: 200ms }\n${SHADOW}`);
    expect(await send(daemon, 'alice', 3)).toBe('OK\nOK\nOK\n');
    const metrics = await (await fetch(`${urlOf(daemon)}/metrics`)).text();
    expect(metrics).toContain(
      'sluice_decisions_total{limit="trial",verdict="deny",shadow="true"} 2\n',
    );
    const unmarked = metrics
      .split('\n')
      .filter((line) => /limit="trial"(?!.*shadow="true")/.test(line));
    expect(unmarked).toEqual([]);
    await daemon.waitForLog(/ info calls denied limit=trial shadow=true denied=2 /);
    expect(daemon.log()).not.toContain(' warn ');
    const top = await get(daemon, '/top');
    expect(top.limits).toEqual([{ name: 'trial', shadow: true, allowed: 1, denied: 2 }]);
    expect(top.denied).toMatchObject([{ limit: 'trial', shadow: true, denied: 2 }]);
  });

  test('/feed: marks the limit, its keys and its denials, and leaves it out of the total', async () => {
    const daemon = await startWith(
      'limits: { api: { bucket: { rate: 1/h, burst: 2 } }, trial: { bucket: { rate: 1/h, burst: 1 }, always: true, shadow: true } }\n',
    );
    const response = await fetch(`${urlOf(daemon)}/feed`);
    const reader = response.body?.getReader();
    await send(daemon, 'alice', 5);
    let text = '';
    const decoder = new TextDecoder();
    const seconds = () =>
      [...text.matchAll(/event: second\ndata: (.*)\n\n/g)].map(([, data]) => JSON.parse(data));
    const isComplete = () => seconds().some(({ denied }) => denied[0]?.denied === 3);
    for (let reads = 0; reads < 20 && !isComplete(); reads++)
      text += decoder.decode((await reader?.read())?.value);
    await reader?.cancel();
    const second = seconds().at(-1);
    const sum = (read: (event: typeof second) => number): number =>
      seconds().reduce((total, event) => total + read(event), 0);
    expect(second.limits.trial.shadow).toBe(true);
    expect(sum(({ limits }) => limits.trial.denied)).toBe(1);
    expect(sum(({ total }) => total.denied)).toBe(3);
    expect(sum(({ total }) => total.allowed)).toBe(2);
    expect(second.denied).toMatchObject([
      { limit: 'api', denied: 3, keys: [{ key: 'alice', denied: 3 }] },
      { limit: 'trial', shadow: true, denied: 1, keys: [{ key: 'alice', denied: 1 }] },
    ]);
    expect(second.recent.map(({ key, limit }: Denied) => [key, limit])).toEqual(
      expect.arrayContaining([
        ['alice', 'api'],
        ['alice', 'trial'],
      ]),
    );
  });
});

describe('denial log with keys', () => {
  const LIMITS = 'limits: { api: { bucket: { rate: 1/h, burst: 1 } } }\n';

  test('log.denials.keys: names the most denied keys, most first', async () => {
    const daemon = await startWith(`log: { denials: { every: 10s, keys: 2 } }\n${LIMITS}`);
    await send(daemon, 'alice', 5);
    await send(daemon, 'bob smith', 9);
    await send(daemon, 'carol', 3);
    await daemon.stop();
    expect(daemon.log()).toMatch(/denied=14 seconds=[\d.]+ keys="\\"bob smith\\" alice"\n/);
  });

  test('by default no key is in the log', async () => {
    const daemon = await startWith(LIMITS);
    await send(daemon, 'alice', 5);
    await daemon.stop();
    expect(daemon.log()).toContain('denied=4');
    expect(daemon.log()).not.toContain('alice');
  });
});

const TOP_LIMITS = `
deny: [mallory]
limits:
  api: { bucket: { rate: 1/h, burst: 2 } }
  trial: { bucket: { rate: 1/h, burst: 1 }, always: true, shadow: true }
`;

describe('sluice top', () => {
  test('--once --json: rates of limits, the most denied and the most called keys', async () => {
    const daemon = await startWith(TOP_LIMITS);
    await send(daemon, 'alice', 7);
    const at = daemon.addresses.http[0];
    const { out } = await spawned('top', '--once', '--json', '--interval', '100ms', '--at', at);
    const report = JSON.parse(out);
    expect(report.limits).toMatchObject([
      { name: 'api', allowed: 2, denied: 5, allowedPerSecond: 0, deniedPerSecond: 0 },
      { name: 'trial', shadow: true, allowed: 1, denied: 1 },
    ]);
    expect(report.denied[0]).toMatchObject({ limit: 'api', keys: [{ key: 'alice', denied: 5 }] });
    expect(report.called).toEqual([
      { limit: 'api', calls: 7, keys: [{ key: 'alice', calls: 7 }] },
      { limit: 'trial', shadow: true, calls: 7, keys: [{ key: 'alice', calls: 7 }] },
    ]);
    expect(report.spanSeconds).toBeLessThanOrEqual(20);
  });

  test('a live screen of 80 columns: rates, keys without control characters, reconnects, q quits', async () => {
    let daemon = await startWith(TOP_LIMITS);
    const at = daemon.addresses.http[0];
    const input = Object.assign(new EventEmitter(), {
      isRaw: false,
      setRawMode: (isRaw: boolean) => Object.assign(input, { isRaw }),
      pause: () => input,
      resume: () => input,
    });
    let written = '';
    const screenOf = (): string[] => (written.split('\x1b[H').at(-1) ?? '').split('\r\n');
    const write = (text: string): void => {
      written += text;
    };
    const tty = input as unknown as NodeJS.ReadStream;
    const code = run(['top', '--interval', '100ms', '--at', at], {
      ...{ print: () => {}, error: () => {}, log: () => {}, version: '0', columns: 80 },
      openScreen: () => openScreen(tty, { rows: 24, columns: 80 }, write, false),
    });
    await waitUntil(() => input.isRaw);
    await send(daemon, 'alice', 9);
    await send(daemon, `evil\x1b[2J${'x'.repeat(300)}`, 4);
    await send(daemon, 'mallory', 2);
    await waitUntil(() => /^api +[\d.]+ +[1-9][\d.]* /m.test(screenOf().join('\n')));
    await waitUntil(() => screenOf().join('\n').includes('mallory'));
    const lines = screenOf().map((line) => line.replaceAll('\x1b[K', '').replaceAll('\x1b[J', ''));
    expect(lines.length).toBeLessThanOrEqual(24);
    expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(80);
    expect(lines.join('')).not.toContain('\x1b');
    expect(lines[0]).toMatch(/^sluice top, 127\.0\.0\.1:\d+, \d\d:\d\d:\d\d UTC, q quits$/);
    expect(lines).toContainEqual(expect.stringMatching(/^trial \(shadow\) /));
    expect(lines).toContainEqual(expect.stringMatching(/^alice +api +7$/));
    expect(lines).toContainEqual(expect.stringMatching(/^evil\\u001b\[2Jx+… +api +2$/));
    expect(lines).toContainEqual(expect.stringMatching(/^mallory +deny-list +2$/));

    await daemon.stop();
    await waitUntil(() => screenOf()[0].includes('is unavailable: ECONNREFUSED'));
    daemon = await start(['--line', 'off', '--resp', 'off', '--http', at]);
    await waitUntil(
      () => screenOf()[0].includes('q quits') && /^default /m.test(screenOf().join('\n')),
    );
    input.emit('data', Buffer.from('q'));
    expect(await code).toBe(0);
    expect(input.isRaw).toBe(false);
    expect(written.endsWith('\x1b[?1049l')).toBe(true);
  });

  test('keys sort, filter and pause a live screen, and q is a letter of a filter', async () => {
    const daemon = await startWith(TOP_LIMITS);
    const at = daemon.addresses.http[0];
    const input = Object.assign(new EventEmitter(), {
      ...{ setRawMode: () => input, pause: () => input, resume: () => input },
    });
    let written = '';
    const screenOf = (): string => written.split('\x1b[H').at(-1)?.replaceAll('\x1b[K', '') ?? '';
    const write = (text: string): void => {
      written += text;
    };
    const press = (keys: string): void => void input.emit('data', Buffer.from(keys));
    const tty = input as unknown as NodeJS.ReadStream;
    const code = run(['top', '--interval', '100ms', '--at', at], {
      ...{ print: () => {}, error: () => {}, log: () => {}, version: '0', columns: 80 },
      openScreen: () => openScreen(tty, { rows: 24, columns: 80 }, write, false),
    });
    await waitUntil(() => screenOf().includes('by denied   d denied'));
    await send(daemon, 'alice', 9);
    await send(daemon, 'bob-q', 9);
    await waitUntil(() => /^alice +api/m.test(screenOf()) && /^bob-q +api/m.test(screenOf()));
    press('c');
    expect(screenOf()).toMatch(/^called key, last 10 to 20 s +limit +calls\/s/m);
    expect(screenOf()).toMatch(/^bob-q +api, trial \(shadow\) +[\d.]+/m);
    press('n');
    expect(screenOf()).toMatch(/^denied key, /m);
    expect(screenOf()).toContain('by name');
    press('/b');
    press('ob-q');
    expect(screenOf()).toContain('filter: bob-q_');
    press('\r');
    expect(screenOf()).toMatch(/UTC, only "bob-q", q quits/);
    expect(screenOf()).toMatch(/^bob-q +api/m);
    expect(screenOf()).not.toMatch(/^alice +api/m);
    press('p');
    expect(screenOf()).toMatch(/UTC, paused, only "bob-q"/);
    press('\x1b');
    expect(screenOf()).toMatch(/^alice +api/m);
    press('h');
    expect(screenOf()).toContain('most denied calls a second first');
    press('q');
    expect(await code).toBe(0);
  });

  test('where output is no terminal: one report, sorted and filtered by flags', async () => {
    const daemon = await startWith(TOP_LIMITS);
    await send(daemon, 'alice', 7);
    await send(daemon, 'bob', 7);
    const at = daemon.addresses.http[0];
    const { out } = await spawned('top', '--sort', 'name', '--filter', 'BOB', '--at', at);
    expect(out).toMatch(/^bob +api +5/m);
    expect(out).not.toContain('alice');
    await send(daemon, 'mallory', 21);
    const hottest = await spawned('top', '--sort', 'calls', '--at', at);
    expect(hottest.out).toMatch(/^mallory +deny-list +[\d.]+\n(alice|bob) +api, trial/m);
    const { code, err } = await sluice('top', '--sort', 'deny', '--at', at);
    expect({ code, err }).toMatchObject({ code: 2, err: expect.stringContaining('one of denied') });
  });

  test('without a daemon: says so, exit code 2', async () => {
    const { code, err } = await sluice('top', '--once', '--at', '127.0.0.1:1');
    expect(code).toBe(2);
    expect(err).toContain('sluice at 127.0.0.1:1 is unavailable: ECONNREFUSED');
  });
});

describe('sluice why', () => {
  test('a throttled key: limits, state, denials with the rule, and what to do', async () => {
    const daemon = await startWith(MANY_CAUSES);
    await send(daemon, 'user:alice', 5);
    const { out, code } = await spawned('why', 'user:alice', '--at', daemon.addresses.http[0]);
    expect(code).toBe(0);
    expect(out).toMatch(/^"user:alice": denied now by api\.bucket-2\n/);
    expect(out).toMatch(/\n {2}api: matches user:\*, is the most specific\n/);
    expect(out).toMatch(/\n {6}0 left, a call fits in (30 min|29 min \d+ s)\n/);
    expect(out).toMatch(/ api +bucket-2 +3 +1 +0 +in \d+/);
    expect(out).toMatch(/ trial \(shadow\) +- +1 /);
    expect(out).toContain('what to do:\n  api: call less often, raise its rate');
    expect(out).toContain('  trial: shadow mode, nothing was refused\n');
  });

  test('lists, a key that no limit matches, a backend that is unavailable, a key without denials', async () => {
    const daemon = await startWith(MANY_CAUSES);
    const at = daemon.addresses.http[0];
    await fetch(`${urlOf(daemon)}/check?key=r1`);
    const why = async (key: string): Promise<string> => (await sluice('why', key, '--at', at)).out;
    expect(await why('mallory')).toContain('always denied: the deny list has mallory');
    expect(await why('mallory')).toContain('remove the key from the deny list');
    expect(await why('nothing')).toContain('set `unmatched: allow`');
    expect(await why('r1')).toContain('far: the backend of the limit did not reply');
    expect(await why('user:new')).toMatch(/^"user:new": a call would be allowed now\n/);
    expect(await why('user:new')).toContain('denials, last 1h: none recorded by this daemon\n');
  });

  test('--json, a mistake in --since, and no daemon', async () => {
    const daemon = await startWith(MANY_CAUSES);
    await send(daemon, 'mallory', 2);
    const at = daemon.addresses.http[0];
    const { out } = await sluice('why', 'mallory', '--since', '10m', '--json', '--at', at);
    expect(JSON.parse(out).denied.denials).toMatchObject([{ reason: 'deny-list', denied: 2 }]);
    expect(await sluice('why', 'a', '--since', 'later', '--at', at)).toMatchObject({
      code: 2,
      err: 'sluice why: expected `--since` to be a duration such as 10m, got "later"\n',
    });
    expect((await sluice('why', 'a', '--at', '127.0.0.1:1')).code).toBe(2);
  });
});
