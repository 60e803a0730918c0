import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { promisify } from 'node:util';
import { afterEach, describe, expect, test } from 'vitest';
import { createLog } from '../../src/core/log.ts';
import { parseConfigText } from '../../src/daemon/config/file.ts';
import { VirtualClock } from '../../src/testing/index.ts';
import { cpuMs } from '../support/clock-watch.ts';
import { daemonFixture, EPHEMERAL_PORTS } from '../support/daemon.ts';

const fixture = daemonFixture();
const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0)) await end();
  await fixture.end();
});

/** Clears the screen in seven and in eight bits, sets the title, forges a line, reverses the text. */
const HOSTILE =
  'a\x1b[2J\x9b2J\x1b]0;pwned\x07\r\n2026-01-01 info forged\u202eb\u2028c\x7f\u{e0001}';

/** What a terminal or a log reader would obey; a newline ends a line. */
const OBEYED = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u;

describe('log', () => {
  test.each(['text', 'json'] as const)(
    '%s: a hostile key stays one line and drives no terminal',
    (format) => {
      const lines: string[] = [];
      const log = createLog(
        (line) => lines.push(line),
        () => ({ format, level: 'info' }),
        new VirtualClock(),
      );
      log('warn', 'limit decreased by back-pressure', { key: HOSTILE });
      expect(lines).toHaveLength(1);
      expect(lines[0]).not.toMatch(OBEYED);
      if (format === 'json') expect(JSON.parse(lines[0]).key).toBe(HOSTILE);
    },
  );
});

describe('sluice', () => {
  /** A server in place of a daemon. */
  async function hostileServer(status: number, body: object): Promise<string> {
    const server = createServer((_, response) => {
      response.writeHead(status, { 'content-type': 'application/json' });
      response.end(JSON.stringify(body));
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    ends.push(() => server.close());
    return `127.0.0.1:${(server.address() as AddressInfo).port}`;
  }

  const run = (...words: string[]): Promise<string> =>
    promisify(execFile)(process.execPath, ['dist/bin/sluice.js', ...words]).then(
      ({ stdout, stderr }) => stdout + stderr,
      ({ stdout, stderr }: { stdout: string; stderr: string }) => stdout + stderr,
    );

  const peer = { name: HOSTILE, id: HOSTILE, ageMs: 1, address: HOSTILE };

  test.each([
    ['an error of the server', 403, { detail: HOSTILE }, []],
    ['a name as JSON', 200, { id: HOSTILE, peers: [peer] }, ['--json']],
  ])('prints %s without characters that drive a terminal', async (_, status, body, flags) => {
    const printed = await run('peers', '--at', await hostileServer(status, body), ...flags);
    expect(printed).toContain('pwned');
    expect(printed.replaceAll('\n', '')).not.toMatch(OBEYED);
  });
});

describe('names with a meaning in JavaScript', () => {
  const NAMES = ['__proto__', 'constructor', 'toString', 'hasOwnProperty'];

  test('limits of these names count, are listed and exported like others', async () => {
    const limits = NAMES.map(
      (name) => `"${name}": { bucket: { rate: 1/h, burst: 2 }, match: "${name}" }`,
    );
    const file = fixture.place().file('sluice.yaml', `limits: { ${limits.join(', ')} }`);
    const daemon = await fixture.start([...EPHEMERAL_PORTS, '--config', file]);
    const at = `http://${daemon.addresses.http[0]}`;
    for (const name of NAMES) {
      const statuses = [];
      for (let n = 0; n < 3; n++)
        statuses.push((await fetch(`${at}/check?limit=${name}&key=${name}`)).status);
      expect({ name, statuses }).toEqual({ name, statuses: [200, 200, 429] });
    }
    const metrics = await (await fetch(`${at}/metrics`)).text();
    for (const name of NAMES) expect(metrics).toContain(`limit="${name}"`);
    const listed = JSON.stringify(await (await fetch(`${at}/limits`)).json());
    for (const name of NAMES) expect(listed).toContain(`"${name}"`);
  });

  test('these names are no limits of a daemon without them, and no fields of a request', async () => {
    const daemon = await fixture.start(EPHEMERAL_PORTS);
    const at = `http://${daemon.addresses.http[0]}`;
    const headers = { 'content-type': 'application/json' };
    for (const name of NAMES) {
      const body = `{"key": "a", "${name}": {"limit": "x"}}`;
      const replies = await Promise.all([
        fetch(`${at}/check?limit=${name}&key=a`),
        fetch(`${at}/${name}`),
        fetch(`${at}/check?${name}=1&key=a`),
        fetch(`${at}/check`, { method: 'POST', headers, body }),
      ]);
      const statuses = replies.map(({ status }) => status);
      expect({ name, statuses }).toEqual({ name, statuses: [404, 404, 400, 400] });
    }
  });
});

test('configuration error: a line with a million addresses is reported in bounded time', () => {
  const before = cpuMs();
  const result = parseConfigText('x.yaml', `allow: { x: "${'://'.repeat(1_000_000)}" }`);
  expect(result).toHaveProperty('problems');
  expect(cpuMs() - before).toBeLessThan(10_000);
});
