import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { afterEach, expect, test } from 'vitest';
import { run } from '../src/cli/run.ts';
import { countAllowed, daemonFixture, exchange, type RunningDaemon } from './support/daemon.ts';
import { parseExposition } from './support/exposition.ts';

const TOKEN = 'a-token-for-operators';
const HEADERS = { authorization: `Bearer ${TOKEN}` };
const CONFIG = `
admin: { token: ${TOKEN} }
limits: { api: { bucket: { rate: 1/h, burst: 20 } } }
`;
const PORTS = ['line', 'resp', 'http'].flatMap((protocol) => [`--${protocol}`, '127.0.0.1:0']);

const fixture = daemonFixture();
afterEach(() => fixture.end());

/** One daemon after the other, with the same files. */
function restarts() {
  const place = fixture.place();
  mkdirSync(`${place.path}/var`);
  const state = `${place.path}/var/state`;
  const args = [...PORTS, '--config', place.file('sluice.yaml', CONFIG), '--snapshot', state];
  const start = (...more: readonly string[]) => fixture.start([...args, ...more]);
  const kill = async (daemon: RunningDaemon, ...more: readonly string[]) => {
    await daemon.stop('SIGKILL');
    return start(...more);
  };
  return { folder: `${place.path}/var`, journal: `${state}.controls`, start, kill };
}

const url = (daemon: RunningDaemon, path: string): string =>
  `http://127.0.0.1:${daemon.port('http')}${path}`;
const post = async (daemon: RunningDaemon, path: string): Promise<object> => {
  const response = await fetch(url(daemon, path), { method: 'POST', headers: HEADERS });
  expect(response.status).toBe(200);
  return (await response.json()) as object;
};
const isBanned = async (daemon: RunningDaemon, key: string): Promise<boolean> =>
  (await fetch(url(daemon, `/check?key=${key}&cost=0`))).status === 403;
const resp = (daemon: RunningDaemon, ...commands: readonly string[]): Promise<string> =>
  exchange(daemon.addresses.resp[0], [`AUTH admin ${TOKEN}`, ...commands, ''].join('\r\n'));
const metric = async (daemon: RunningDaemon, name: string): Promise<number | undefined> => {
  const text = await (await fetch(url(daemon, '/metrics'), { headers: HEADERS })).text();
  return parseExposition(text).find((family) => family.name === name)?.samples[0]?.value;
};

test('kill -9 at once after the reply: bans, removals and resets hold, with an old snapshot too', async () => {
  const { start, kill } = restarts();
  let daemon = await start();
  expect(await post(daemon, '/ban?key=eve&for=1h')).not.toHaveProperty('unsaved');
  daemon = await kill(daemon);
  expect(await isBanned(daemon, 'eve')).toBe(true);
  const bans = Array.from({ length: 1000 }, (_, n) => `SLUICE.BAN k${n} 3600`);
  expect((await resp(daemon, ...bans)).split('+OK')).toHaveLength(1002);
  daemon = await kill(daemon, '--workers', '1');
  expect(await isBanned(daemon, 'k999')).toBe(true);
  expect(await countAllowed(daemon, 'alice', 20)).toBe(20);
  expect(await daemon.stop()).toBe(0); // its snapshot has the bans, and what alice has consumed

  daemon = await start();
  expect(await resp(daemon, 'SLUICE.UNBAN eve', 'SLUICE.RESET alice')).toBe('+OK\r\n:1\r\n:1\r\n');
  daemon = await kill(daemon);
  expect(await isBanned(daemon, 'eve')).toBe(false);
  expect(await isBanned(daemon, 'k999')).toBe(true);
  expect(await countAllowed(daemon, 'alice', 30)).toBe(20);
});

test('a damaged journal is logged, and the daemon starts with the rest', async () => {
  const { start, kill, journal } = restarts();
  let daemon = await start();
  for (const key of ['eve', 'mallory']) await post(daemon, `/ban?key=${key}&for=1h`);
  writeFileSync(journal, readFileSync(journal, 'utf8').replace('"eve"', '"adam"'));
  daemon = await kill(daemon);
  expect(daemon.log()).toMatch(/warn controls are damaged: .*damagedLines=1 controls=1/);
  expect(await isBanned(daemon, 'mallory')).toBe(true);
  expect(await isBanned(daemon, 'eve')).toBe(false);
});

test('a disk that fails: the control acts, the reply and the metric say that it is not saved', async () => {
  const { start, kill, folder } = restarts();
  const daemon = await start();
  await post(daemon, '/ban?key=eve&for=1h');
  renameSync(folder, `${folder}-away`);
  const failed = { unsaved: expect.stringContaining('ENOENT') };
  expect(await post(daemon, '/ban?key=mallory&for=1h')).toMatchObject(failed);
  expect(await post(daemon, '/unban?key=eve')).toMatchObject({ removed: true, ...failed });
  expect(await post(daemon, '/reset?key=alice')).toMatchObject({ reset: ['api'], ...failed });
  const replies = await resp(daemon, 'SLUICE.BAN trudy 60', 'SLUICE.UNBAN trudy');
  expect(replies.match(/-NOTSAVED in effect, but a crash loses it: ENOENT/g)).toHaveLength(2);
  expect(await isBanned(daemon, 'mallory')).toBe(true);
  expect(await metric(daemon, 'sluice_snapshot_failures_total')).toBeGreaterThan(0);
  expect(daemon.log()).toContain('error controls not written: a crash loses them');

  renameSync(`${folder}-away`, folder);
  expect(await resp(daemon, 'SLUICE.UNBAN trudy')).toBe('+OK\r\n:0\r\n'); // tried again, and saved
  const next = await kill(daemon);
  expect(await isBanned(next, 'mallory')).toBe(true);
  expect(await isBanned(next, 'eve')).toBe(false);
});

test('without a snapshot file: a ban acts, and the response says that it ends with the process', async () => {
  const place = fixture.place();
  const daemon = await fixture.start([...PORTS, '--config', place.file('sluice.yaml', CONFIG)]);
  const unsaved = expect.stringContaining('no `snapshot` file');
  expect(await post(daemon, '/ban?key=eve&for=1h')).toMatchObject({ unsaved });
  expect(await isBanned(daemon, 'eve')).toBe(true);
  expect(await post(daemon, '/unban?key=eve')).toEqual({ removed: true });
  expect(await resp(daemon, 'SLUICE.BAN eve 60')).toBe('+OK\r\n+OK\r\n');
  const [printed, warned]: [string[], string[]] = [[], []];
  const terminal = {
    print: (text: string) => void printed.push(text),
    error: (text: string) => void warned.push(text),
    log: () => {},
    columns: 80,
    version: '0.0.0',
  };
  process.env.SLUICE_ADMIN_TOKEN = TOKEN;
  const args = ['ban', 'mallory', '1h', '--at', `127.0.0.1:${daemon.port('http')}`];
  const code = await run(args, terminal).finally(() => delete process.env.SLUICE_ADMIN_TOKEN);
  expect(code).toBe(0);
  expect(printed).toEqual([expect.stringMatching(/^ban mallory until/)]);
  expect(warned).toEqual([expect.stringMatching(/^warning: not saved: .* no `snapshot` file$/)]);
});
