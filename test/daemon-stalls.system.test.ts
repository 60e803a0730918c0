import { type ChildProcess, fork } from 'node:child_process';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, expect, test } from 'vitest';
import { connectTo, daemonFixture, EPHEMERAL_PORTS } from './support/daemon.ts';

const fixture = daemonFixture();
const place = fixture.place();
afterAll(() => fixture.end());

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

/** Checks so many keys, some thousand at a time. */
async function checkKeys(where: string, count: number): Promise<void> {
  const socket = connectTo(where);
  let missing = 0;
  let answered = (): void => {};
  socket.on('data', (chunk: Buffer) => {
    missing -= chunk.length;
    if (missing === 0) answered();
  });
  for (let from = 0; from < count; from += 5000) {
    missing = 5000 * 3;
    const done = new Promise<void>((resolve) => {
      answered = resolve;
    });
    socket.write(Array.from({ length: 5000 }, (_, n) => `key-${from + n}\n`).join(''));
    await done;
  }
  socket.destroy();
}

interface Latencies {
  readonly probes: number;
  readonly max: number;
}

function startProbe(port: number): () => Promise<Latencies> {
  const probe: ChildProcess = fork('bench/daemon/probe.mjs', [String(port)]);
  closing.push(() => probe.kill());
  return () =>
    new Promise((resolve) => {
      probe.once('message', (read) => resolve(read as Latencies));
      probe.send('read');
    });
}

test('snapshot of 600,000 windows: the daemon answers meanwhile', async () => {
  const file = join(place.path, 'state');
  const config = place.file(
    'snapshot.yaml',
    `snapshot: { file: ${file}, every: 2s }\nlog: { level: debug }\nlimits: { all: { window: { limit: 10, per: 1h } } }`,
  );
  const daemon = await fixture.start(['--config', config, ...EPHEMERAL_PORTS]);
  await checkKeys(daemon.addresses.line[0], 600_000);
  const read = startProbe(daemon.port('line'));
  const written = (): number => daemon.log().split('snapshot written').length;
  const worst: number[] = [];
  // Written at once, a snapshot of so many keys takes 170 ms and more. Other processes may cause pauses, too.
  for (let n = 0; n < 4 && Math.min(Infinity, ...worst) >= 100; n++) {
    const before = written();
    await expect.poll(written, { timeout: 10_000 }).toBeGreaterThan(before);
    await read();
    await expect.poll(written, { timeout: 10_000 }).toBeGreaterThan(before + 1);
    const { probes, max } = await read();
    expect(probes).toBeGreaterThan(100);
    worst.push(max);
  }
  expect(Math.min(...worst)).toBeLessThan(100);
}, 60_000);

/**
 * Reloads until the worst probe is below the bound, at most four times. Other processes cause pauses, too: those of the time
 * before each reload are taken off.
 */
async function worstDuringReload(name: string, write: (round: number) => string): Promise<number> {
  place.file(name, write(0));
  const daemon = await fixture.start(['--config', join(place.path, name), ...EPHEMERAL_PORTS]);
  const read = startProbe(daemon.port('line'));
  const worst: number[] = [];
  for (let n = 1; n <= 4 && Math.min(Infinity, ...worst) >= MAX_RELOAD_STALL_MS; n++) {
    place.file(name, write(n));
    const quiet: Latencies[] = [];
    const readQuiet = async () => quiet[quiet.push(await read()) - 1].probes;
    for (const _ of [1, 2, 3]) await expect.poll(readQuiet).toBeGreaterThan(10);
    const url = `http://${daemon.addresses.http[0]}/reload`;
    const response = await fetch(url, { method: 'POST' });
    expect([response.status, await response.text()]).toEqual([200, expect.any(String)]);
    const found = [await read()];
    // Probes are answered in their order: the last of these were sent after the reload.
    const readNext = async () => found[found.push(await read()) - 1].probes;
    await expect.poll(readNext, { timeout: 10_000 }).toBeGreaterThan(10);
    worst.push(worstOf(found) - worstOf(quiet));
  }
  return Math.min(...worst);
}

const worstOf = (read: readonly Latencies[]): number =>
  Math.max(...read.map(({ max }) => max ?? 0));

/** At once, each of these takes 200 ms and more. */
const MAX_RELOAD_STALL_MS = 150;

test('reload of 10,000 overrides: the daemon answers meanwhile', async () => {
  const overrides = (burst: number): string =>
    Array.from(
      { length: 10_000 },
      (_, n) => `    - { match: 'k${n}', bucket: { rate: ${1 + (n % 10)}/m, burst: ${burst} } }\n`,
    ).join('');
  const write = (round: number): string =>
    `limits:\n  all:\n    bucket: { rate: 1000/s }\n    overrides:\n${overrides(10 + round)}`;
  expect(await worstDuringReload('overrides.yaml', write)).toBeLessThan(MAX_RELOAD_STALL_MS);
}, 60_000);

test('reload with files of 100,000 networks and plans: the daemon answers meanwhile', async () => {
  const lines = (line: (n: number) => string): string =>
    Array.from({ length: 100_000 }, (_, n) => line(n)).join('\n');
  place.file(
    'networks.txt',
    lines((n) => `10.${n >> 16}.${(n >> 8) & 255}.${n & 255}/32`),
  );
  place.file(
    'plans.csv',
    lines((n) => `user-${n},${n % 2 ? 'pro' : 'free'}`),
  );
  const write = (round: number): string => `deny: [{ file: networks.txt }]
planFile: plans.csv
limits:
  all:
    bucket: { rate: ${1000 + round}/s }
    plans: { free: { bucket: { rate: ${1 + round}/s } }, pro: { bucket: { rate: 9/s } } }`;
  expect(await worstDuringReload('files.yaml', write)).toBeLessThan(MAX_RELOAD_STALL_MS);
}, 60_000);

test('overload: checks that waited too long are allowed, uncounted, and readiness says so', async () => {
  const config = place.file(
    'overload.yaml',
    'overload: { maxAge: 20ms }\nlimits: { all: { bucket: { rate: 1/h, burst: 1 } } }',
  );
  const daemon = await fixture.start(['--config', config, ...EPHEMERAL_PORTS]);
  const http = `http://${daemon.addresses.http[0]}`;
  const get = async (path: string) => {
    const response = await fetch(http + path);
    return { status: response.status, text: await response.text() };
  };
  expect((await get('/readyz')).status).toBe(200);

  const block = Buffer.from('client\n'.repeat(400_000));
  const verdicts = { O: 0, N: 0 };
  const flood = (socket: Socket): Promise<void> =>
    new Promise((done) => {
      let missing = block.length / 'client\n'.length;
      socket.on('data', (chunk: Buffer) => {
        for (const byte of chunk) {
          if (byte === 0x4b) verdicts.O++; // the K of OK
          if (byte === 0x0a) missing--;
          if (byte === 0x4e) verdicts.N++;
        }
        if (missing === 0) done();
      });
      socket.write(block);
    });
  const sockets = Array.from({ length: 8 }, () =>
    connect(daemon.port('line'), '127.0.0.1').setNoDelay(),
  );
  closing.push(() => {
    for (const socket of sockets) socket.destroy();
  });
  await Promise.all(sockets.map(flood));

  const ready = await get('/readyz');
  expect([ready.status, JSON.parse(ready.text).reasons]).toEqual([503, ['overload']]);
  const metrics = (await get('/metrics')).text;
  const metric = (name: string): number =>
    Number(new RegExp(`^${name.replace(/[{}"]/g, '\\$&')} (\\d+)$`, 'm').exec(metrics)?.[1]);
  const shed = metric('sluice_overload_shed_total');
  expect(shed).toBeGreaterThan(100_000);
  // One check was allowed by the limit. All others were denied and counted, or shed.
  expect(verdicts.O).toBe(shed + 1);
  expect(metric('sluice_decisions_total{limit="all",verdict="deny"}')).toBe(verdicts.N);
  await expect.poll(async () => (await get('/readyz')).status, { timeout: 8000 }).toBe(200);
  const logged = (): string[] => daemon.log().match(/(?<=Z )\w+ overload.*$/gm) ?? [];
  await expect.poll(logged, { timeout: 8000 }).toHaveLength(2);
  const [began, ended] = logged();
  expect(began).toMatch(/^warn overloaded: .* maxAgeMs=\d+ fail=open$/);
  expect(ended).toMatch(new RegExp(`^info overload has ended shed=${shed} denied=0 seconds=`));
}, 40_000);
