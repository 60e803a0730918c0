/**
 * The page in Chromium against a real daemon under load: charts move, a key is explained, a ban is set and ends, on a
 * desktop and a phone, dark and light; the playground computes. With PICTURES=docs/pictures it also writes the screenshots of docs/reference/page.md.
 */

import type { Browser, BrowserContextOptions, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  DESKTOP,
  launchBrowser,
  PHONE,
  picture,
  seriousViolations,
  watchProblems,
} from './support/browser.ts';
import { daemonFixture, EPHEMERAL_PORTS, exchange, type RunningDaemon } from './support/daemon.ts';
import {
  chromiumBrowser,
  freePorts,
  freeUdpPorts,
  redisServer,
  startRedis,
} from './support/services.ts';
import { startUdpProxy, type UdpProxy } from './support/udp-proxy.ts';

const TOKEN = 'a-token-of-the-browser-test';

const CONFIG = `
admin: { token: ${TOKEN} }
limits:
  api: { match: 'ip:*', bucket: { rate: 20/s, burst: 40 } }
  trial: { match: 'ip:*', always: true, shadow: true, bucket: { rate: 5/s, burst: 10 } }
  upstream: { match: upstream, adaptive: {} }
  warmup: { match: 'job:*', per: limit, ramp: { min: 10, max: 110, over: 2m, mode: scheduled } }
  batches: { match: 'batch:*', spacing: { every: 200ms } }
  strict: { match: 'flip:*', shadow: true, bucket: { rate: 1/h, burst: 3 } }
  fleet: { match: 'fleet:*', peers: true, bucket: { rate: 1000/s, burst: 1000 } }
`;

const FLEET_KEY = 'a-key-of-the-browser-test';

/** Each with a name for its picture. */
const VIEWS = (name: string) =>
  [
    [name, DESKTOP, 'light'],
    [`${name}-dark`, DESKTOP, 'dark'],
    [`${name}-phone-light`, PHONE, 'light'],
    [`${name}-phone`, PHONE, 'dark'],
  ] as const;

const PIXELS = (canvas: { toDataURL(): string }): string => canvas.toDataURL();

/** The last number of a row: calls a second. */
const rateOf = (row: string): number => Number(/([\d.]+)\s*$/.exec(row)?.[1] ?? Number.NaN);

/** A run of the playground, on a machine that has other work. */
const RUN_MS = 60_000;

/** Two samples of the history, on a machine that has other work. */
const SAMPLES_MS = 30_000;

const { start, place, serve, end } = daemonFixture();
afterAll(end);

/** Calls of several kinds until it is stopped, at most a few hundred a second. */
function startLoad(daemon: RunningDaemon): () => void {
  const base = `http://${daemon.addresses.http[0]}`;
  const ask = async (path: string, init?: RequestInit): Promise<{ permit?: string }> => {
    const response = await fetch(base + path, init).catch(() => undefined);
    return response ? ((await response.json().catch(() => ({}))) as { permit?: string }) : {};
  };
  let calls = 0;
  const upstream = async (): Promise<void> => {
    const { permit } = await ask('/check?key=upstream&hold=1');
    if (permit === undefined) return;
    await new Promise((resolve) => setTimeout(resolve, 25));
    const body = JSON.stringify({ permit, outcome: 'ok' });
    await ask('/settle', { method: 'POST', headers: { 'content-type': 'application/json' }, body });
  };
  const timer = setInterval(() => {
    const n = calls++;
    void exchange(daemon.addresses.line[0], 'ip:192.0.2.7\n'.repeat(4)).catch(() => {});
    void ask(`/check?key=ip:198.51.100.${n % 9}`);
    void ask(`/check?key=job:${n % 3}`);
    if (n % 3 === 0) void ask('/check?key=batch:nightly&wait=1s');
    void upstream();
  }, 50);
  return () => clearInterval(timer);
}

describe.runIf(chromiumBrowser() !== undefined)('page in Chromium', () => {
  let browser: Browser;
  let daemon: RunningDaemon;
  let peer: RunningDaemon;
  let network: UdpProxy;
  let stopLoad = (): void => {};
  const problems: string[] = [];

  beforeAll(async () => {
    const [own = 0, other = 0] = await freeUdpPorts(2);
    network = await startUdpProxy(own, other);
    const peers = (a: number, b: number): string =>
      `peers: { udp: ['127.0.0.1:${a}', '127.0.0.1:${b}'], peerTimeout: 30s, key: ${FLEET_KEY} }`;
    const startWith = (more: string): Promise<RunningDaemon> =>
      start([...EPHEMERAL_PORTS, '--config', place().file('sluice.yaml', CONFIG + more)]);
    daemon = await startWith(peers(own, network.ports[0]));
    peer = await startWith(peers(other, network.ports[1]));
    stopLoad = startLoad(daemon);
    browser = await launchBrowser();
  }, 60_000);

  afterAll(async () => {
    stopLoad();
    await browser?.close();
    await network?.stop();
  });

  /** Opens the page and enters the token. Errors in the console and requests to other hosts are collected. */
  async function open(
    options: BrowserContextOptions,
    fragment = '',
    { addresses } = daemon,
  ): Promise<Page> {
    const context = await browser.newContext({ reducedMotion: 'reduce', ...options });
    const page = await context.newPage();
    const origin = `http://${addresses.http[0]}`;
    watchProblems(page, origin, problems);
    await page.goto(`${origin}/page/${fragment}`);
    await page.getByLabel('Token').fill(TOKEN);
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    return page;
  }

  test('under load: charts move, and a reload of the page loses no sample', async () => {
    const page = await open({ viewport: DESKTOP, colorScheme: 'light' }, '#span=5');
    const chart = page.getByRole('img', { name: /^All limits: allowed [1-9]/ });
    await chart.waitFor({ timeout: SAMPLES_MS });
    const pixels = (): Promise<string> => page.locator('#overview canvas').evaluate(PIXELS);
    const before = await pixels();
    await expect.poll(pixels, { timeout: SAMPLES_MS }).not.toBe(before);
    const samples = (): Promise<number> =>
      page
        .waitForResponse((response) => response.url().endsWith('/history?since=0'))
        .then((response) => response.json())
        .then(({ times }) => times.length);
    const [kept] = await Promise.all([samples(), page.reload()]);
    expect(kept).toBeGreaterThanOrEqual(2);
    await chart.waitFor();
    await page.context().close();
  }, 90_000);

  test('a limit that learns: its limit, calls in flight and round-trip time; a ramp: its tokens', async () => {
    const page = await open({ viewport: DESKTOP, colorScheme: 'light' });
    await page.getByRole('button', { name: 'upstream', exact: true }).first().click();
    const learnt =
      /learnt limit and round-trip time, key upstream: limit [1-9].*round-trip time \d/;
    await page.getByRole('img', { name: learnt }).waitFor({ timeout: SAMPLES_MS });
    await page.getByRole('button', { name: 'warmup', exact: true }).click();
    await page.getByRole('img', { name: /ramp tokens.*: tokens [1-9]/ }).waitFor();
    await page.context().close();
  }, 60_000);

  test('hottest keys: most called first, with their rate and their limits, also of the line protocol', async () => {
    const page = await open({ viewport: DESKTOP, colorScheme: 'light' });
    const hottest = page.getByRole('region', { name: 'Keys with most calls' });
    const first = hottest.getByRole('row').nth(1);
    // Four calls in a turn, and the others one: a key is listed once, with all its limits.
    await first.getByText(/^api, trial shadow$/).waitFor({ timeout: SAMPLES_MS });
    await page.locator('.columns').scrollIntoViewIfNeeded();
    await picture(page, 'page-keys');
    await first.getByRole('button', { name: 'ip:192.0.2.7' }).click();
    await page.getByRole('article', { name: 'Key ip:192.0.2.7' }).waitFor();
    await expect
      .poll(async () => rateOf(await first.innerText()), { timeout: SAMPLES_MS })
      .toBeGreaterThan(2 * rateOf(await hottest.getByRole('row').nth(2).innerText()));
    const nearest = page.getByRole('region', { name: 'Keys nearest to their limits' });
    await nearest.getByRole('button', { name: 'ip:192.0.2.7' }).first().waitFor();
    await page.getByRole('button', { name: 'last hours' }).click();
    await first.getByRole('button', { name: 'ip:192.0.2.7' }).waitFor();
    await page.context().close();
  }, 60_000);

  test('a throttled key: listed, found by search, and explained', async () => {
    const page = await open({ viewport: DESKTOP, colorScheme: 'light' });
    const mostDenied = page.getByRole('region', { name: 'Keys with most denied calls' });
    await mostDenied.getByRole('button', { name: 'ip:192.0.2.7' }).first().waitFor();
    const longest = page.getByRole('region', { name: 'Keys that are throttled for longest' });
    await longest.getByRole('button', { name: 'ip:192.0.2.7' }).first().waitFor();
    await page.getByRole('searchbox', { name: 'Key' }).fill('ip:192.0.2.7');
    await page.keyboard.press('Enter');
    const report = page.getByRole('article', { name: 'Key ip:192.0.2.7' });
    await report.getByText('one limit decides').waitFor();
    await report.getByText('matches ip:*, is the most specific').waitFor();
    const denials = report.getByRole('region', { name: 'Recent denials of ip:192.0.2.7' });
    await denials.getByText('api').first().waitFor();
    await picture(page, 'page-key');
    await page.context().close();
  }, 60_000);

  test('shadow beside live: counts the calls that were allowed and would have been denied', async () => {
    const replies = await exchange(daemon.addresses.line[0], 'flip:a\n'.repeat(11));
    expect(replies).toBe('OK\n'.repeat(11));
    const page = await open({ viewport: DESKTOP, colorScheme: 'light' });
    const shadows = page.getByRole('region', { name: 'Limits in shadow mode' });
    // Three fit the burst: 8 of 11 would flip.
    const row = shadows.getByRole('row', { name: /^strict bucket: rate 1\/h, burst 3 11 8 73 % / });
    await row.waitFor({ timeout: SAMPLES_MS });
    await page.context().close();
  }, 60_000);

  test('peers: age, reports and divergence follow what the network loses', async () => {
    const page = await open({ viewport: DESKTOP, colorScheme: 'light' });
    const peers = page.getByRole('region', { name: 'Peers', exact: true });
    const cells = async (): Promise<Record<string, string>> => {
      const [name = '', state = '', age = '', reports = '', missing = '', lost = '', part = ''] =
        await peers.getByRole('row').nth(1).locator('th, td').allInnerTexts();
      return { name, state, age, reports, missing, lost, part };
    };
    const call = (): Promise<string> => exchange(peer.addresses.line[0], 'fleet:a\n');
    const traffic = setInterval(() => void call().catch(() => {}), 100);
    const shows = (expected: object): Promise<void> =>
      expect.poll(cells, { timeout: SAMPLES_MS, interval: 250 }).toMatchObject(expected);
    const some = expect.stringMatching(/^[1-9]/);
    try {
      const name = expect.stringMatching(new RegExp(`:${peer.pid}$`));
      const whole = { state: 'present', missing: '0', lost: '0', part: '0 %' };
      await shows({ ...whole, name, reports: some, age: expect.stringMatching(/^\d+ ms|1 s$/) });
      network.passEvery = 5;
      await shows({ missing: some, lost: '0', part: expect.stringMatching(/^[\d.]*[1-9]\d* %$/) });
      network.passEvery = Infinity;
      await shows({ state: 'silent', age: expect.stringMatching(/^([3-9]|\d\d) s$/) });
      network.passEvery = 1;
      await shows({ ...whole, age: expect.stringMatching(/^\d+ ms|1 s$/) });
    } finally {
      clearInterval(traffic);
      network.passEvery = 1;
    }
    await page.context().close();
  }, 120_000);

  test('configuration in effect: options of the file, defaults, and no secret', async () => {
    const page = await open({ viewport: DESKTOP, colorScheme: 'light' });
    await page.getByText('Show', { exact: true }).click();
    const text = await page.locator('#config pre').innerText();
    const config = JSON.parse(text);
    expect(config).toMatchObject({
      listen: { http: [{ at: '127.0.0.1:0', tls: false }] },
      admin: { token: 'set (hidden)' },
      resp: { password: 'not set' },
      unmatched: 'allow',
      backends: ['peers'],
    });
    const names = config.limits.map(({ name }: { name: string }) => name);
    expect(names).toEqual(['api', 'trial', 'upstream', 'warmup', 'batches', 'strict', 'fleet']);
    const api = { limit: { bucket: { rate: '20/s', burst: 40 } }, per: 'key', shadow: false };
    expect(config.limits[0]).toMatchObject({ ...api, match: ['ip:*'] });
    expect(text).not.toContain(TOKEN);
    expect(text).not.toContain(FLEET_KEY);
    await page.context().close();
  }, 60_000);

  test('a ban: set, shown with its end, in effect, and gone after its time', async () => {
    const page = await open({ viewport: DESKTOP, colorScheme: 'dark' }, '#key=ip%3A198.51.100.3');
    const form = page.locator('#controls form').first();
    await form.getByLabel('Key or pattern').fill('ip:198.51.100.3');
    await form.getByLabel('For').fill('6s');
    await form.getByLabel('Note').fill('scraper');
    await form.getByRole('button', { name: 'Ban' }).click();
    await page
      .getByText(/^Banned ip:198\.51\.100\.3\. Not saved: .* no `snapshot` file\.$/)
      .waitFor();
    const bans = page.getByRole('region', { name: 'Bans and overrides' }).last();
    await bans.getByRole('rowheader', { name: 'ip:198.51.100.3' }).waitFor();
    await bans.getByText(/in \d s/).waitFor();
    const report = page.getByRole('article', { name: 'Key ip:198.51.100.3' });
    await report.getByText(/a ban has ip:198.51.100.3 \(scraper\)/).waitFor();
    await page.getByText('None is in effect.').waitFor({ timeout: 20_000 });
    await report.getByText('one limit decides').waitFor();
    await page.context().close();
  }, 60_000);

  test('an override: set and removed with the keyboard', async () => {
    const page = await open({ viewport: DESKTOP, colorScheme: 'light' });
    const form = page.locator('#controls form').nth(1);
    await form.getByLabel('Key').fill('ip:198.51.100.4');
    await form.getByLabel('Rate').fill('100/s');
    await page.keyboard.press('Enter');
    const remove = page.getByRole('button', { name: 'Remove the override of ip:198.51.100.4' });
    await remove.focus();
    await page.keyboard.press('Enter');
    await page.getByText('None is in effect.').waitFor();
    await page.context().close();
  }, 60_000);

  test('desktop and phone, dark and light: no serious violation of axe, nothing beyond the width', async () => {
    const page = await open({ viewport: DESKTOP }, '#span=5&limit=upstream&key=ip%3A192.0.2.7');
    await page.getByRole('article', { name: 'Key ip:192.0.2.7' }).waitFor();
    await page.getByRole('heading', { name: 'Peers' }).waitFor();
    await page.getByText('Show', { exact: true }).click();
    for (const [name, viewport, colorScheme] of VIEWS('page')) {
      await page.setViewportSize(viewport);
      await page.emulateMedia({ colorScheme });
      expect([name, ...(await seriousViolations(page))]).toEqual([name]);
      const width = await page.evaluate('document.documentElement.scrollWidth');
      expect([name, width]).toEqual([name, viewport.width]);
      await page.evaluate('scrollTo(0, 0)');
      if (name !== 'page-phone-light') await picture(page, name);
    }
    await page.context().close();
  }, 90_000);

  test('playground: computes what the limit allows, follows the slider, and keeps its settings in the address', async () => {
    const page = await open({ viewport: DESKTOP, colorScheme: 'light' });
    await page.getByRole('link', { name: 'Playground' }).click();
    const allowed = (text: string) =>
      page.getByRole('img', { name: new RegExp(`^Allowed: on average A ${text}`) });
    await allowed('150/s, B 30\\d/s').waitFor({ timeout: RUN_MS });
    const rows = page.getByRole('region', { name: 'Figures of the whole run' });
    await rows.getByRole('rowheader', { name: 'allowed' }).waitFor();
    const pixels = await page.locator('canvas').first().evaluate(PIXELS);
    await page.getByLabel('Rate', { exact: true }).fill('50');
    await allowed('50\\.?\\d*/s').waitFor({ timeout: RUN_MS });
    expect(await page.locator('canvas').first().evaluate(PIXELS)).not.toBe(pixels);
    await page.getByLabel('Rate, slider').focus();
    await page.keyboard.press('ArrowRight');
    await page.getByText('bucket: rate 51/s, burst 20').waitFor();
    await page.waitForURL(/#view=playground&.*a\.rate=51&/);
    await page.reload();
    await allowed('51\\.?\\d*/s').waitFor({ timeout: RUN_MS });
    const download = page.waitForEvent('download');
    await page.getByRole('link', { name: 'Download as one file' }).click();
    expect((await download).suggestedFilename()).toBe('sluice-playground.html');
    await page.context().close();
  }, 120_000);

  test('playground as one file from a disk: no request, the same result, and a hostile link is reported', async () => {
    const file = `file://${process.cwd()}/dist/page/playground.html`;
    const context = await browser.newContext({ viewport: DESKTOP, reducedMotion: 'reduce' });
    const page = await context.newPage();
    watchProblems(page, 'file:', problems);
    await page.goto(`${file}#rate=1e9&a=<img src=x onerror=alert(1)>&a.x=1&%E0%A4%A`);
    const alert = page.getByRole('alert');
    await alert.getByText('rate: expected a number from 1 to 1000, got "1e9"').waitFor();
    await alert.getByText('a: expected one of none, bucket').waitFor();
    await page.getByRole('img', { name: /^Allowed: on average A/ }).waitFor({ timeout: RUN_MS });
    const json = encodeURIComponent('{"bucket":{"rate":"fast"}}');
    await page.goto(`${file}#a=written&a.json=${json}`);
    await alert.getByText('expected `a.bucket.rate` to be a rate above 0').waitFor();
    await page.getByLabel('Example').selectOption('A hog: a count for each client or one for all');
    await page.getByRole('rowheader', { name: 'allowed calls of the hog' }).waitFor();
    expect(await alert.count()).toBe(0);
    for (const [name, viewport, colorScheme] of VIEWS('playground')) {
      await page.setViewportSize(viewport);
      await page.emulateMedia({ colorScheme });
      if (viewport === PHONE) await page.reload();
      await page.locator('progress.idle').waitFor({ state: 'attached', timeout: RUN_MS });
      await page.getByRole('img', { name: /^Allowed/ }).waitFor({ timeout: RUN_MS });
      expect([name, ...(await seriousViolations(page))]).toEqual([name]);
      const width = await page.evaluate('document.documentElement.scrollWidth');
      expect([name, width]).toEqual([name, viewport.width]);
      if (!name.endsWith('phone-light')) await picture(page, name);
    }
    await context.close();
  }, 120_000);

  test.runIf(redisServer() !== undefined)(
    'fleet: members of the pool, groups and what was borrowed, backends that become unavailable, a peer that is gone',
    async () => {
      const redis = await serve(() => startRedis());
      const [eu, us, ap] = await freePorts(3);
      const udp = (await freeUdpPorts(2)).map((port) => `'127.0.0.1:${port}'`);
      const config = (self: string, port: number, addresses: readonly string[]): string => `
admin: { token: ${TOKEN} }
peers: { udp: [${addresses}], peerTimeout: 2s, key: ${FLEET_KEY}, name: ${self}-1 }
pool: { redis: 'redis://127.0.0.1:${redis.port}', id: ${self}-1, memberTimeout: 10s }
groups:
  self: ${self}
  groups: { eu: { at: 'http://127.0.0.1:${eu}' }, us: { at: 'http://127.0.0.1:${us}' }, ap: { at: 'http://127.0.0.1:${ap}' } }
  listen: ${port}
  key: a-key-of-the-browser-test
limits:
  regional: { match: 'r:*', bucket: { rate: 1/h, burst: 90 }, groups: true, peers: false }
  divided: { match: 'd:*', ramp: { min: 60, max: 60, over: 1s }, pool: true }
  central: { match: 'c:*', bucket: { rate: 10/s, burst: 20 }, redis: { url: 'redis://127.0.0.1:${redis.port}' } }
`;
      const args = (name: string, text: string): string[] => [
        ...EPHEMERAL_PORTS,
        ...['--config', place().file(`${name}.yaml`, text)],
      ];
      const [first, second] = await Promise.all([
        start(args('eu', config('eu', eu, udp))),
        start(args('us', config('us', us, udp.toReversed()))),
      ]);
      const page = await open({ viewport: DESKTOP, colorScheme: 'light' }, '', first);
      const groups = page.getByRole('region', { name: 'Groups' });
      await groups.getByText('not tried yet').nth(1).waitFor({ timeout: SAMPLES_MS });
      const members = page.getByRole('region', { name: 'Members of the pool' });
      await members.getByRole('rowheader', { name: 'us-1' }).waitFor({ timeout: SAMPLES_MS });
      await page.getByText('all agree on the size').waitFor({ timeout: SAMPLES_MS });
      for (let n = 0; n < 4; n++)
        await exchange(first.addresses.line[0], 'r:alice\n'.repeat(30) + 'c:bob\n'.repeat(3));
      const us1 = groups.getByRole('row', { name: /^us reachable [1-9]/ });
      await us1.waitFor({ timeout: SAMPLES_MS });
      await groups.getByRole('row', { name: /^ap unavailable/ }).waitFor({ timeout: SAMPLES_MS });
      const limits = page.locator('#limits');
      await limits.getByText('redis reachable').waitFor({ timeout: SAMPLES_MS });
      const peers = page.getByRole('region', { name: 'Peers', exact: true });
      await peers.getByRole('row', { name: /^us-1 present / }).waitFor({ timeout: SAMPLES_MS });
      await page.locator('#fleet').scrollIntoViewIfNeeded();
      await picture(page, 'page-fleet');
      await second.stop();
      const gone = peers.getByRole('row', { name: /^us-1 gone since [0-2]\d:[0-5]\d \d+ s / });
      await gone.waitFor({ timeout: SAMPLES_MS });
      for (const colorScheme of ['light', 'dark'] as const) {
        await page.emulateMedia({ colorScheme });
        expect([colorScheme, ...(await seriousViolations(page))]).toEqual([colorScheme]);
      }
      await redis.stop();
      const unavailable = async (): Promise<number> => {
        await exchange(first.addresses.line[0], 'c:bob\n'); // calls find out
        return limits.getByText('redis unavailable').count();
      };
      await expect.poll(unavailable, { timeout: SAMPLES_MS, interval: 500 }).toBe(1);
      await page.getByText('store unavailable').waitFor({ timeout: SAMPLES_MS });
      await page.context().close();
    },
    180_000,
  );

  test('without a token in the configuration the page is read-only: no form to ban a key', async () => {
    const unguarded = await start([...EPHEMERAL_PORTS]);
    const page = await browser.newPage();
    await page.goto(`http://${unguarded.addresses.http[0]}/page`);
    await page.getByText('The page is read-only').waitFor();
    expect(await page.getByRole('button', { name: 'Ban' }).count()).toBe(0);
    await page.close();
  }, 60_000);

  test('no error in the console, and no request to another host', () => {
    expect(problems).toEqual([]);
  });
});
