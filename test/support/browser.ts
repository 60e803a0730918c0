/** Chromium for tests of pages: its flags, violations that axe finds, and screenshots. */

import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { type Browser, chromium, type Page } from 'playwright-core';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const { PICTURES } = process.env;

/** As root and without a network, headless. */
const FLAGS = [
  ...['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-sync'],
  ...['--disable-background-networking', '--disable-component-update'],
];

export const DESKTOP = { width: 1280, height: 900 };
export const PHONE = { width: 390, height: 844 };

export const launchBrowser = (): Promise<Browser> =>
  chromium.launch({ executablePath: '/usr/bin/chromium', args: FLAGS });

/** Collects errors in the console, and requests that do not go to `origin`. */
export function watchProblems(page: Page, origin: string, problems: string[]): void {
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) problems.push(message.text());
  });
  page.on('pageerror', (error) => problems.push(error.message));
  page.on('request', (request) => {
    if (!request.url().startsWith(origin)) problems.push(`request to ${request.url()}`);
  });
}

export async function seriousViolations(page: Page): Promise<string[]> {
  const found = await page.evaluate(`${AXE}; axe.run()`);
  const { violations } = found as {
    violations: { id: string; impact: string; nodes: { html: string }[] }[];
  };
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .map(({ id, nodes }) => `${id}: ${nodes[0]?.html}`);
}

/** Runs a module in a page of its own: the first line that it prints, and the problems until then. */
export async function runModule(
  browser: Browser,
  script: string,
): Promise<{ readonly printed: string; readonly problems: readonly string[] }> {
  const server = createServer((request, response) => {
    const isScript = request.url === '/script.js';
    response.setHeader('content-type', isScript ? 'text/javascript' : 'text/html');
    const page = '<link rel="icon" href="data:,"><script type="module" src="/script.js"></script>';
    response.end(isScript ? script : page);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const page = await browser.newPage();
  const problems: string[] = [];
  watchProblems(page, origin, problems);
  const printing = page.waitForEvent('console', (message) => message.type() === 'log');
  const failing = page.waitForEvent('pageerror').then((error) => Promise.reject(error));
  try {
    await page.goto(origin);
    const printed = await Promise.race([printing, failing]);
    return { printed: printed.text(), problems };
  } finally {
    for (const waiting of [printing, failing]) waiting.catch(() => {});
    await page.close();
    server.close();
  }
}

/** Writes a screenshot for the docs if `PICTURES` names a folder. */
export async function picture(page: Page, name: string): Promise<void> {
  if (PICTURES) await page.screenshot({ path: join(PICTURES, `${name}.png`) });
}
