import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { afterEach, describe, expect, test } from 'vitest';
import { daemonFixture, EPHEMERAL_PORTS, exchange, type RunningDaemon } from './support/daemon.ts';
import { freeUdpPorts } from './support/services.ts';

const { start, place, end } = daemonFixture();
afterEach(end);

const TOKEN = 'a-token-of-the-page-test';
const PASSWORD = 'a-password-of-the-page-test';

const FILES = ['index.html', 'page.js', 'page.css', 'icon.svg', 'playground.html'];
const MAX_PAGE_BYTES = 200_000;

const startWith = (config: string): Promise<RunningDaemon> =>
  start([...EPHEMERAL_PORTS, '--config', place().file('sluice.yaml', config)]);

const get = (daemon: RunningDaemon, path: string, token?: string): Promise<Response> =>
  fetch(`http://${daemon.addresses.http[0]}${path}`, {
    headers: token === undefined ? {} : { authorization: `Bearer ${token}` },
  });

const LIMITS = 'limits: { api: { bucket: { rate: 1/m, burst: 3 } } }';

describe('page', () => {
  test('its files are below 200 kB gzipped, all together', () => {
    const sizes = FILES.map((name) => gzipSync(readFileSync(`dist/page/${name}`)).length);
    expect(sizes.reduce((sum, size) => sum + size, 0)).toBeLessThan(MAX_PAGE_BYTES);
  });

  test('the playground in one file: a download, without any address, its policy allows its own script alone', async () => {
    const daemon = await startWith(LIMITS);
    const response = await get(daemon, '/page/playground.html');
    expect(response.headers.get('content-disposition')).toMatch(/^attachment; filename="sluice/);
    const html = await response.text();
    const [, policy = '', script = ''] =
      /Security-Policy" content="([^"]*)"[\s\S]*<script type="module">([\s\S]*)<\/script>/.exec(
        html,
      ) ?? [];
    const hash = createHash('sha256').update(script).digest('base64');
    expect(policy).toMatch(
      /^default-src 'none'; script-src 'sha256-[^;]*'; style-src 'sha256-[^;]*';/,
    );
    expect(policy).toContain(`'sha256-${hash}'`);
    expect(html).not.toMatch(/<script[^>]* src=|<link|<img|<iframe/);
  });

  test('its files: a strict content security policy, and no address of another host', async () => {
    const daemon = await startWith(LIMITS);
    const response = await get(daemon, '/page');
    expect([response.status, new URL(response.url).pathname]).toEqual([200, '/page/']);
    const html = await response.text();
    expect(html).not.toMatch(/<style|style=|<script(?![^>]* src=)|\son\w+=/);
    for (const name of ['', ...FILES]) {
      const file = await get(daemon, `/page/${name}`);
      const policy = file.headers.get('content-security-policy') ?? '';
      expect(file.status).toBe(200);
      expect(policy).toContain("default-src 'none'");
      expect(policy).not.toMatch(/unsafe|https?:|\*|data:/);
      expect(file.headers.get('x-content-type-options')).toBe('nosniff');
      const links = (await file.text()).match(/https?:\/\/[\w.-]+/g) ?? [];
      expect(links.filter((link) => link !== 'http://www.w3.org')).toEqual([]);
    }
    expect((await get(daemon, '/page/../../package.json')).status).toBe(404);
  });

  test('with a token: files are open, data is not', async () => {
    const daemon = await startWith(`${LIMITS}\nadmin: { token: ${TOKEN} }`);
    expect((await get(daemon, '/page/')).status).toBe(200);
    expect(await (await get(daemon, '/page/state')).json()).toMatchObject({ needsToken: true });
    for (const path of ['/history', '/keys', '/config']) {
      expect([path, (await get(daemon, path)).status]).toEqual([path, 401]);
      expect([path, (await get(daemon, path, TOKEN)).status]).toEqual([path, 200]);
    }
  });

  test('GET /config: every section with its defaults, and no secret', async () => {
    const [port] = await freeUdpPorts(1);
    const config = `${LIMITS}
admin: { token: ${TOKEN} }
resp: { password: ${PASSWORD} }
peers: { udp: ['127.0.0.1:${port}'], key: ${PASSWORD}-of-peers }`;
    const daemon = await startWith(config);
    const text = await (await get(daemon, '/config', TOKEN)).text();
    expect(text).not.toContain(TOKEN);
    expect(text).not.toContain(PASSWORD);
    const { config: shown } = JSON.parse(text);
    expect(shown).toMatchObject({
      admin: { token: 'set (hidden)' },
      resp: { password: 'set (hidden)' },
      unmatched: 'allow',
      bounds: { maxConnections: 10_000 },
      limits: [{ name: 'api', limit: { bucket: { rate: '1/m', burst: 3 } }, per: 'key' }],
    });
  });

  test('GET /history and /keys: a sample within seconds, with the denied key', async () => {
    const daemon = await startWith(LIMITS);
    await exchange(daemon.addresses.line[0], 'mallory\n'.repeat(10));
    const deadline = performance.now() + 20_000;
    let history = { times: [], limits: [] as { totals: object }[] };
    while (history.times.length === 0 && performance.now() < deadline) {
      await new Promise((resolve) => setTimeout(resolve, 200));
      history = (await (await get(daemon, '/history')).json()) as typeof history;
    }
    expect(history.limits[0]).toMatchObject({ name: 'api', totals: { allowed: 3, denied: 7 } });
    expect(await (await get(daemon, '/keys')).json()).toMatchObject({
      nearest: [{ key: 'mallory', limit: 'api', quota: 3 }],
      longest: [{ key: 'mallory', limit: 'api', denied: 7 }],
    });
    expect((await get(daemon, '/history?since=soon')).status).toBe(400);
  });
});
