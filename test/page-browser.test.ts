/**
 * The page in Chromium against a real daemon under load: charts move, a key is explained, a ban is set and ends, on a
 * desktop and a phone, dark and light. With PICTURES=docs/pictures it also writes the screenshots of docs/reference/page.md.
 */

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { daemonFixture, EPHEMERAL_PORTS, exchange, type RunningDaemon } from './support/daemon.ts';
import { chromiumBrowser, freeUdpPorts } from './support/services.ts';

const TOKEN = 'a-token-of-the-browser-test';
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const { PICTURES } = process.env;

/** As root and without a network, headless. */
const FLAGS = [
  ...['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-sync'],
  ...['--disable-background-networking', '--disable-component-update'],
];

const CONFIG = `
admin: { token: ${TOKEN} }
limits:
  api: { match: 'ip:*', bucket: { rate: 20/s, burst: 40 } }
  trial: { match: 'ip:*', always: true, shadow: true, bucket: { rate: 5/s, burst: 10 } }
  upstream: { match: upstream, adaptive: {} }
  warmup: { match: 'job:*', per: limit, ramp: { min: 10, max: 110, over: 2m, mode: scheduled } }
  batches: { match: 'batch:*', spacing: { every: 200ms } }
`;

const DESKTOP = { width: 1280, height: 900 };
const PHONE = { width: 390, height: 844 };

/** Two samples of the history, on a machine that has other work. */
const SAMPLES_MS = 30_000;

const { start, place, end } = daemonFixture();
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
  let stopLoad = (): void => {};
  const problems: string[] = [];

  beforeAll(async () => {
    const [own, other] = await freeUdpPorts(2);
    const peers = (a = 0, b = 0): string =>
      `peers: { udp: ['127.0.0.1:${a}', '127.0.0.1:${b}'], key: a-key-of-the-browser-test }`;
    const startWith = (more: string): Promise<RunningDaemon> =>
      start([...EPHEMERAL_PORTS, '--config', place().file('sluice.yaml', CONFIG + more)]);
    daemon = await startWith(peers(own, other));
    await startWith(peers(other, own));
    stopLoad = startLoad(daemon);
    browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: FLAGS });
  }, 60_000);

  afterAll(async () => {
    stopLoad();
    await browser?.close();
  });

  /** Opens the page and enters the token. Errors in the console and requests to other hosts are collected. */
  async function open(options: BrowserContextOptions, fragment = ''): Promise<Page> {
    const context = await browser.newContext({ reducedMotion: 'reduce', ...options });
    const page = await context.newPage();
    const origin = `http://${daemon.addresses.http[0]}`;
    page.on('console', (message) => {
      if (['error', 'warning'].includes(message.type())) problems.push(message.text());
    });
    page.on('pageerror', (error) => problems.push(error.message));
    page.on('request', (request) => {
      if (!request.url().startsWith(origin)) problems.push(`request to ${request.url()}`);
    });
    await page.goto(`${origin}/page/${fragment}`);
    await page.getByLabel('Token').fill(TOKEN);
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    return page;
  }

  const seriousViolations = async (page: Page): Promise<string[]> => {
    const found = await page.evaluate(`${AXE}; axe.run()`);
    const { violations } = found as {
      violations: { id: string; impact: string; nodes: { html: string }[] }[];
    };
    return violations
      .filter(({ impact }) => impact === 'serious' || impact === 'critical')
      .map(({ id, nodes }) => `${id}: ${nodes[0]?.html}`);
  };

  const picture = async (page: Page, name: string): Promise<void> => {
    if (PICTURES) await page.screenshot({ path: join(PICTURES, `${name}.png`) });
  };

  test('under load: charts move, and a reload of the page loses no sample', async () => {
    const page = await open({ viewport: DESKTOP, colorScheme: 'light' }, '#span=5');
    const chart = page.getByRole('img', { name: /^All limits: allowed [1-9]/ });
    await chart.waitFor({ timeout: SAMPLES_MS });
    const pixels = (): Promise<string> =>
      page
        .locator('#overview canvas')
        .evaluate((canvas: { toDataURL(): string }) => canvas.toDataURL());
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

  test('a throttled key: listed, found by search, and explained', async () => {
    const page = await open({ viewport: DESKTOP, colorScheme: 'light' });
    const hottest = page.getByRole('region', { name: 'Keys with most denied calls' });
    await hottest.getByRole('button', { name: 'ip:192.0.2.7' }).first().waitFor();
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

  test('a ban: set, shown with its end, in effect, and gone after its time', async () => {
    const page = await open({ viewport: DESKTOP, colorScheme: 'dark' }, '#key=ip%3A198.51.100.3');
    const form = page.locator('#controls form').first();
    await form.getByLabel('Key or pattern').fill('ip:198.51.100.3');
    await form.getByLabel('For').fill('6s');
    await form.getByLabel('Note').fill('scraper');
    await form.getByRole('button', { name: 'Ban' }).click();
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
    for (const [name, viewport, colorScheme] of [
      ['page', DESKTOP, 'light'],
      ['page-dark', DESKTOP, 'dark'],
      ['page-phone-light', PHONE, 'light'],
      ['page-phone', PHONE, 'dark'],
    ] as const) {
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

  test('no error in the console, and no request to another host', () => {
    expect(problems).toEqual([]);
  });
});

describe.runIf(chromiumBrowser() !== undefined)('page without a token in the configuration', () => {
  test('is read-only: no form to ban a key', async () => {
    const open = await start([...EPHEMERAL_PORTS]);
    const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: FLAGS });
    const page = await browser.newPage();
    await page.goto(`http://${open.addresses.http[0]}/page`);
    await page.getByText('The page is read-only').waitFor();
    expect(await page.getByRole('button', { name: 'Ban' }).count()).toBe(0);
    await browser.close();
  }, 60_000);
});
