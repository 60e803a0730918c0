import { afterAll, beforeAll, expect, test } from 'vitest';
import { run } from '../src/cli/run.ts';
import { daemonFixture, exchange, type RunningDaemon } from './support/daemon.ts';

const TOKEN = 'a-token-for-operators';
const CONFIG = `
admin: { token: ${TOKEN} }
resp: { password: password-of-applications }
limits: { api: { bucket: { rate: 1/h, burst: 20 } } }
`;

const PORTS = ['line', 'resp', 'http'].flatMap((protocol) => [`--${protocol}`, '127.0.0.1:0']);

const fixture = daemonFixture();
let daemon: RunningDaemon;
let args: readonly string[];

beforeAll(async () => {
  const place = fixture.place();
  const file = place.file('sluice.yaml', CONFIG);
  args = [...PORTS, '--config', file, '--snapshot', `${place.path}/state`];
  daemon = await fixture.start(args);
});
afterAll(() => fixture.end());

const url = (path: string): string => `http://127.0.0.1:${daemon.port('http')}${path}`;
const post = (path: string, token = TOKEN): Promise<Response> =>
  fetch(url(path), { method: 'POST', headers: { authorization: `Bearer ${token}` } });
const check = (key: string): Promise<Response> => fetch(url(`/check?key=${key}`));

/** The replies to commands, in order. */
const resp = (...commands: readonly string[]): Promise<string> =>
  exchange(daemon.addresses.resp[0], `${commands.join('\r\n')}\r\n`);

/** Runs a command of the CLI: its exit code and output. */
const cli = (...words: readonly string[]) => cliAt('http', ...words);

async function cliAt(
  protocol: 'http' | 'resp',
  ...words: readonly string[]
): Promise<{ code: number; text: string }> {
  process.env.SLUICE_ADMIN_TOKEN = TOKEN;
  process.env.SLUICE_RESP_PASSWORD = 'password-of-applications';
  const lines: string[] = [];
  const print = (line: string): void => void lines.push(line);
  const terminal = { print, error: print, log: print, columns: 80, version: '0.0.0' };
  try {
    const at = `127.0.0.1:${daemon.port(protocol)}`;
    const code = await run([...words, '--at', at], terminal);
    return { code, text: lines.join('\n') };
  } finally {
    delete process.env.SLUICE_ADMIN_TOKEN;
    delete process.env.SLUICE_RESP_PASSWORD;
  }
}

test('HTTP: a ban denies with 403, reason banned and Retry-After, and needs the admin token', async () => {
  expect((await post('/ban?key=eve&for=1h', 'wrong')).status).toBe(401);
  expect((await check('eve')).status).toBe(200);
  expect((await post('/ban?key=eve&for=1h&note=test')).status).toBe(200);
  const denied = await check('eve');
  expect(denied.status).toBe(403);
  expect(Number(denied.headers.get('retry-after'))).toBeGreaterThan(3590);
  expect(await denied.json()).toMatchObject({ reason: 'banned', verdict: 'deny' });
  expect((await post('/unban?key=eve')).status).toBe(200);
  expect((await post('/unban?key=eve')).status).toBe(404);
  expect((await check('eve')).status).toBe(200);
});

test('HTTP: several checks of which one key is banned, as one check: reason banned and Retry-After', async () => {
  expect((await post('/ban?key=mallory&for=1h')).status).toBe(200);
  const refused = await fetch(url('/check?check=api,alice&check=api,mallory'));
  expect(refused.status).toBe(403);
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(3000);
  const body = (await refused.json()) as { retryAfterMs: number };
  expect(body).toMatchObject({ verdict: 'deny', reason: 'banned', detail: 'The key is banned.' });
  expect(body.retryAfterMs).toBeGreaterThan(3_000_000);
  expect((await post('/unban?key=mallory')).status).toBe(200);
});

test('HTTP: an invalid request is a 400 that names the parameter', async () => {
  const response = await post('/ban?key=eve&for=soon');
  expect(response.status).toBe(400);
  expect(await response.text()).toContain('`for`');
  expect((await post('/ban?keys=eve')).status).toBe(400);
});

test('HTTP: parameters in the URL and in a body together are refused, unknown ones too', async () => {
  const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };
  const send = (path: string, fields: object) =>
    fetch(url(path), { method: 'POST', headers, body: JSON.stringify(fields) });
  const both = await send('/reset?limit=api', { key: 'zed' });
  expect(both.status).toBe(400);
  expect(await both.text()).toContain('URL');
  expect((await send('/reset', { key: 'zed', limits: 'api' })).status).toBe(400);
  expect(await (await send('/reset', { key: 'zed', limit: 'api' })).json()).toEqual({
    reset: ['api'],
    failed: [],
  });
  const form = { method: 'POST', headers: { authorization: `Bearer ${TOKEN}` } };
  const body = new URLSearchParams({ key: 'zed' });
  expect((await fetch(url('/reset?limit=api'), { ...form, body })).status).toBe(400);
  expect((await fetch(url('/reset'), { ...form, body })).status).toBe(200);
});

test('HTTP: a rule in the URL is JSON', async () => {
  const rule = encodeURIComponent('{"bucket":{"rate":"1/h","burst":3}}');
  expect((await post(`/override?key=yan&for=1h&rule=${rule}`)).status).toBe(200);
  expect((await post('/override?key=yan&for=1h&rule=fast')).status).toBe(400);
  const statuses = await Promise.all([1, 2, 3, 4].map(async () => (await check('yan')).status));
  expect(statuses.filter((status) => status === 200)).toHaveLength(3);
  await post('/remove-override?key=yan');
});

test('CLI: check and why show the end of a ban, why its note, and a ban comes before an override', async () => {
  await cli('ban', 'eve', '1h', '--note', 'scraper');
  const checked = await cliAt('resp', 'check', 'eve');
  expect(checked.text).toMatch(/^NO: banned, until \d{4}-\d\d-\d\dT/);
  expect((await cli('why', 'eve')).text).toMatch(
    /denied until \d{4}-.*: a ban has eve \(scraper\)/,
  );
  const overridden = await cli('override', 'eve', '5/s', '1h');
  expect(overridden.text).toContain('not banned: unban it first');
  expect((await cli('unban', 'eve')).code).toBe(0);
});

test('ban: a key that reads like a pattern is banned by itself with exact, by HTTP, RESP and the command line', async () => {
  const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };
  const send = async (path: string, fields: object): Promise<unknown> =>
    (await fetch(url(path), { method: 'POST', headers, body: JSON.stringify(fields) })).json();
  const statuses = async () => [(await check('team:*')).status, (await check('team:1')).status];
  expect(await send('/ban', { key: { exact: 'team:*' }, for: '1h' })).toMatchObject({
    key: 'team:*',
    exact: true,
  });
  expect(await statuses()).toEqual([403, 200]);
  expect((await cli('controls')).text).toContain('{exact: team:*}');
  expect((await post('/unban?key=team:*')).status).toBe(404); // a pattern
  expect((await post('/unban?key=team:*&exact=true')).status).toBe(200);
  expect((await post('/ban?key=team:*&for=1h&exact=yes')).status).toBe(400);
  const banned = await resp(`AUTH admin ${TOKEN}`, 'SLUICE.BAN team:* 60 why EXACT');
  expect(banned).toBe('+OK\r\n+OK\r\n');
  expect(await statuses()).toEqual([403, 200]);
  expect(await resp(`AUTH admin ${TOKEN}`, 'SLUICE.UNBAN team:* ALL')).toContain('EXACT');
  expect(await resp(`AUTH admin ${TOKEN}`, 'SLUICE.UNBAN team:* EXACT')).toContain(':1');
  expect((await cli('ban', 'team:*', '1h', '--exact')).text).toMatch(
    /^ban \{exact: team:\*\} until/,
  );
  expect(await statuses()).toEqual([403, 200]);
  expect((await cli('unban', 'team:*', '--exact')).code).toBe(0);
  expect((await cli('reset', 'team:*')).text).toContain('use --exact for a key');
  expect((await cli('reset', 'team:*', '--exact')).code).toBe(0);
});

test('ban: the reply to a pattern says which keys it bans', async () => {
  const { text } = await cli('ban', 'team:*', '1h');
  expect(text).toContain('\npattern: bans every key that matches team:*');
  expect(await (await post('/ban?key=10.0.0.0/8&for=1h')).json()).toMatchObject({
    pattern: 'bans every key that matches 10.0.0.0/8',
  });
  for (const key of ['eve', 'ip:2001:db8::1'])
    expect(await (await post(`/ban?key=${key}&for=1s`)).json()).not.toHaveProperty('pattern');
  expect((await cli('ban', '10.0.0/8', '1h')).text).toContain('use --exact for a key');
  for (const key of ['team:*', '10.0.0.0/8', 'eve', 'ip:2001:db8::1'])
    await post(`/unban?key=${key}`);
});

test('RESP: commands of operators need AUTH admin with the token, not the password of the port', async () => {
  const refused = await resp(
    'AUTH password-of-applications',
    'SLUICE.BAN eve 60',
    'SLUICE.CONTROLS',
  );
  expect(refused.match(/-NOPERM/g)).toHaveLength(2);
  expect(await resp('AUTH admin wrong', 'SLUICE.BAN eve 60')).toContain('-NOAUTH');
  const done = await resp(
    `AUTH admin ${TOKEN}`,
    'SLUICE.BAN eve 60',
    'SLUICE.CHECK * eve',
    'SLUICE.CONTROLS',
    'SLUICE.UNBAN eve',
    'SLUICE.UNBAN eve',
  );
  expect(done).toMatch(/^\+OK\r\n\+OK\r\n\*6\r\n:0\r\n/);
  expect(done).toContain('banned');
  expect(done).toMatch(/:1\r\n:0\r\n$/);
  expect(await resp(`AUTH admin ${TOKEN}`, 'SLUICE.BAN eve soon')).toContain('-ERR');
});

test('RESP: override and reset', async () => {
  const replies = await resp(
    `AUTH admin ${TOKEN}`,
    'SLUICE.OVERRIDE zoe 50/h 60 api',
    'SLUICE.CHECK api zoe 50',
    'SLUICE.CHECK api zoe 1',
    'SLUICE.RESET zoe',
    'SLUICE.CHECK api zoe 50',
    'SLUICE.REMOVEOVERRIDE zoe',
  );
  const verdicts = [...replies.matchAll(/\*6\r\n:(\d)/g)].map(([, allowed]) => allowed);
  expect(verdicts).toEqual(['1', '0', '1']);
  const rule = '{"window": {"limit": 5, "per": "1m"}}';
  expect(await cli('override', 'yves', rule, '1h', '--limit', 'api')).toMatchObject({ code: 0 });
  expect((await cli('controls')).text).toContain('{"window":{"limit":5,"per":"1m"}}');
  expect((await cli('override', 'yves', '{"window"', '1h')).text).toContain('a rule as JSON');
  expect((await cli('override', 'yves', '--remove')).code).toBe(0);
});

test('RESP and HTTP: a key that is not UTF-8 is banned as its bytes', async () => {
  expect((await post('/ban?key=k%FF%FE&for=1h')).status).toBe(200);
  expect((await check('k%FF%FE')).status).toBe(403);
  expect((await check('k%FF%FD')).status).toBe(200);
  const words = (list: readonly string[]): string =>
    `*${list.length}\r\n${list.map((word) => `$${word.length}\r\n${word}\r\n`).join('')}`;
  const text = words(['AUTH', 'admin', TOKEN]) + words(['SLUICE.UNBAN', 'k\xff\xfe']);
  const reply = await exchange(daemon.addresses.resp[0], Buffer.from(text, 'latin1'));
  expect(reply).toBe('+OK\r\n:1\r\n');
  expect((await check('k%FF%FE')).status).toBe(200);
});

test('CLI: ban, override, reset and list', async () => {
  expect(await cli('ban', 'ip:10.*', '1h', '--note', 'scraper')).toMatchObject({ code: 0 });
  expect((await check('ip:10.1.1.1')).status).toBe(403);
  expect(await cli('override', 'carol', '100/h', '1d')).toMatchObject({ code: 0 });
  const { text } = await cli('controls');
  expect(text).toMatch(/ban +ip:10\.\* .* scraper/);
  expect(text).toMatch(/override +carol +api +\{"bucket":\{"rate":"100\/h"\}\}/);
  expect(await cli('reset', 'carol')).toEqual({ code: 0, text: 'carol is reset in api' });
  expect(await cli('override', 'carol', '--remove')).toEqual({
    code: 0,
    text: 'the override of carol is removed',
  });
  expect(await cli('unban', 'ip:10.*')).toMatchObject({ code: 0 });
  expect((await cli('controls')).text).toBe('no bans and no overrides');
  expect(await cli('unban', 'ip:10.*')).toEqual({
    code: 2,
    text: 'sluice unban: The key is not banned.',
  });
  expect((await cli('ban', 'eve')).text).toContain('expected a key and a duration');
});

test('restart: a ban outlives it', async () => {
  await post('/ban?key=mallory&for=1h');
  expect(await daemon.stop()).toBe(0);
  daemon = await fixture.start(args);
  expect((await check('mallory')).status).toBe(403);
});
