import { afterAll, beforeAll, expect, test } from 'vitest';
import { daemonFixture, exchange, type RunningDaemon } from './support/daemon.ts';
import { runCliAtAsync } from './support/terminal.ts';

const fixture = daemonFixture();
let daemon: RunningDaemon;
afterAll(() => fixture.end());

const ANY = '127.0.0.1:0';
const BURST = 3;

beforeAll(async () => {
  const config = fixture.place().file(
    'sluice.yaml',
    `
overload: { maxAge: 10ms }
log: { denials: { every: 1s, keys: 1 } }
deny: [listed]
limits:
  any: { bucket: { rate: 1/h, burst: ${BURST} }, deny: [refused] }
  login: { bucket: { rate: 1/h, burst: ${BURST} }, match: 'login:*', overload: closed }
`,
  );
  const ports = ['--line', ANY, '--resp', ANY, '--http', ANY];
  daemon = await fixture.start(['--config', config, ...ports]);
  await request('/ban?key=banned&for=1h', { method: 'POST' });
});

async function request(path: string, init: RequestInit = {}) {
  const response = await fetch(`http://${daemon.addresses.http[0]}${path}`, init);
  expect(response.ok).toBe(true);
  return response.text();
}

const metric = async (name: string): Promise<number> => {
  const found = new RegExp(`^${name} (\\d+)$`, 'm').exec(await request('/metrics'));
  return Number(found?.[1]);
};

/** Each key as often; of `client` alone a check that is shed is allowed. */
const KEYS = ['client', 'listed', 'refused', 'banned', 'login:a'];
const CONNECTIONS = 4;

/** Sends all keys in turn over several connections; returns the replies by key, as the protocol splits them. */
async function flood(
  protocol: 'line' | 'resp' | 'http',
  rounds: number,
  encode: (key: string) => string,
  repliesIn: (text: string) => readonly string[],
): Promise<ReadonlyMap<string, readonly string[]>> {
  const bytes = KEYS.map(encode).join('').repeat(rounds);
  const sent = Array.from({ length: CONNECTIONS }, () =>
    exchange(daemon.addresses[protocol][0], bytes),
  );
  const replies = (await Promise.all(sent)).map(repliesIn);
  for (const each of replies) expect(each).toHaveLength(KEYS.length * rounds);
  const ofKey = (at: number) =>
    replies.flatMap((each) => each.filter((_, n) => n % KEYS.length === at));
  return new Map(KEYS.map((key, at) => [key, ofKey(at)]));
}

const countOf = (replies: readonly string[] | undefined, part: string): number =>
  replies?.filter((reply) => reply.includes(part)).length ?? 0;

test('overload, line protocol: bans, lists and a limit that fails closed hold for checks that are shed', async () => {
  const replies = await flood(
    'line',
    15_000,
    (key) => `${key}\n`,
    (text) => text.split('\n').slice(0, -1),
  );
  const allowed = KEYS.map((key) => countOf(replies.get(key), 'OK'));
  const shed = await metric('sluice_overload_shed_total');
  expect(shed).toBeGreaterThan(1000);
  expect(allowed.slice(1, 4)).toEqual([0, 0, 0]);
  expect(allowed[0]).toBeGreaterThan(BURST);
  expect(allowed[4]).toBeLessThanOrEqual(BURST);

  const { denials } = JSON.parse(await request('/denials?key=login:a'));
  expect(denials).toContainEqual(expect.objectContaining({ limit: 'login', reason: 'overload' }));
  const decided = await metric('sluice_decisions_total\\{limit="any",verdict="allow"\\}');
  const refused = await metric('sluice_decisions_total\\{limit="login",verdict="deny"\\}');
  const deniedByOverload = CONNECTIONS * 15_000 - refused - allowed[4];
  const top = JSON.parse(await request('/top'));
  expect([top.reasons.overload, top.shed]).toEqual([deniedByOverload, shed]);
  expect(top.denied).toContainEqual(
    expect.objectContaining({ limit: 'login', reason: 'overload', denied: deniedByOverload }),
  );
  // A check is counted as decided or as shed.
  expect(allowed[0] - decided).toBe(shed - deniedByOverload);

  const words = ['top', '--once', '--json', '--at', daemon.addresses.http[0]];
  const { out } = await runCliAtAsync(80, words);
  const { limits } = JSON.parse(out.join(''));
  expect(limits).toContainEqual(
    expect.objectContaining({
      name: 'overload',
      allowed: shed - deniedByOverload,
      denied: deniedByOverload,
    }),
  );
  await expect
    .poll(() => daemon.log(), { timeout: 8000 })
    .toMatch(/ warn calls denied reason=overload denied=\d+ seconds=\S+ keys=login:a\n/);
  expect(daemon.log().match(/ warn overloaded: /g)).toHaveLength(1);
}, 30_000);

test('overload, RESP: a check that is shed has the reason overload, allowed or denied', async () => {
  const encode = (key: string) =>
    `*3\r\n$12\r\nSLUICE.CHECK\r\n$1\r\n*\r\n$${key.length}\r\n${key}\r\n`;
  const replies = await flood('resp', 10_000, encode, (text) => text.split('*6\r\n').slice(1));
  expect(
    countOf(replies.get('client'), ':1\r\n:-1\r\n:0\r\n$0\r\n\r\n$0\r\n\r\n$8\r\noverload'),
  ).toBeGreaterThan(0);
  expect(
    countOf(
      replies.get('login:a'),
      ':0\r\n:-1\r\n:1000\r\n$5\r\nlogin\r\n$0\r\n\r\n$8\r\noverload',
    ),
  ).toBeGreaterThan(0);
  const reasons = { listed: 'deny-list', refused: 'deny-list', banned: 'banned' };
  for (const [key, reason] of Object.entries(reasons))
    expect(countOf(replies.get(key), `\r\n${reason}\r\n`)).toBe(CONNECTIONS * 10_000);
}, 30_000);

test('overload, HTTP: a check that is shed has the reason overload, allowed or denied', async () => {
  const encode = (key: string) => `GET /check?key=${key} HTTP/1.1\r\nHost: localhost\r\n\r\n`;
  const replies = await flood('http', 1500, encode, (text) => text.split('HTTP/1.1 ').slice(1));
  expect(countOf(replies.get('client'), '{"verdict":"allow","reason":"overload"}')).toBeGreaterThan(
    0,
  );
  expect(countOf(replies.get('login:a'), '"reason":"overload"')).toBeGreaterThan(0);
  for (const reply of replies.get('login:a') ?? [])
    if (reply.includes('"reason":"overload"'))
      expect(reply).toMatch(/^503 .*\r\nRetry-After: 1\r\n/s);
  for (const key of ['listed', 'refused', 'banned'])
    expect(countOf(replies.get(key), '"verdict":"deny"')).toBe(CONNECTIONS * 1500);
}, 30_000);
