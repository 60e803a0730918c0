import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, openSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';
import { afterEach, describe, expect, test } from 'vitest';
import { withFreePorts } from '../bench/server-process.mjs';
import { daemonFixture, EPHEMERAL_PORTS, exchange, waitUntil } from './support/daemon.ts';
import { freePort } from './support/services.ts';

const children: ChildProcess[] = [];
const { start, place, end } = daemonFixture();

afterEach(async () => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
  await end();
});

const CERT = 'test/support/tls/cert.pem';
const KEY = 'test/support/tls/key.pem';
const TLS_AT = (at: string, cert = CERT): string =>
  `{ at: '${at}', tls: { cert: ${cert}, key: ${KEY} } }`;

/** A daemon whose configuration names free ports; tries others if a port was taken meanwhile. */
const startAt = (count: number, configOf: (addresses: readonly string[]) => string) =>
  withFreePorts(count, async (ports) => {
    const addresses = ports.map((port) => `127.0.0.1:${port}`);
    const config = place().file('sluice.yaml', configOf(addresses));
    return { addresses, config, daemon: await start(['--config', config]) };
  });

describe('log that cannot be written', () => {
  /** A daemon with this standard error. */
  async function serveInto(log: 'pipe' | number) {
    const config = place().file('sluice.yaml', '{}');
    const args = ['dist/bin/sluice.js', 'serve', ...EPHEMERAL_PORTS, '--config', config];
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', log] });
    children.push(child);
    let out = '';
    child.stdout?.on('data', (chunk) => {
      out += chunk;
    });
    await waitUntil(() => out.includes('ready\n'));
    const [, at = ''] = / line +(\S+)/.exec(out) ?? [];
    const [, http = ''] = / http +(\S+)/.exec(out) ?? [];
    const reload = () => fetch(`http://${http}/reload`, { method: 'POST' });
    return { child, at, reload };
  }

  test('a full disk does not stop the daemon', async () => {
    const { child, at, reload } = await serveInto(openSync('/dev/full', 'w'));
    expect((await reload()).status).toBe(200);
    expect(await exchange(at, 'a\n')).toBe('OK\n');
    child.kill('SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
  });

  test('a closed pipe does not stop the daemon', async () => {
    const { child, at, reload } = await serveInto('pipe');
    child.stderr?.destroy();
    expect((await reload()).status).toBe(200);
    expect((await reload()).status).toBe(200);
    expect(await exchange(at, 'a\n')).toBe('OK\n');
    child.kill('SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
  });

  test('a reader that does not read delays no decision', async () => {
    const { child, at, reload } = await serveInto('pipe');
    child.stderr?.pause();
    for (let n = 0; n < 3000; n += 100) {
      await Promise.all(Array.from({ length: 100 }, reload)); // 3000 lines are more than a pipe holds
    }
    expect(await exchange(at, 'a\n')).toBe('OK\n');
  });
});

describe('failed start', () => {
  /** Runs a command that is expected to exit by itself. */
  const fail = (...args: string[]) =>
    spawnSync(process.execPath, ['dist/bin/sluice.js', 'serve', ...args], {
      encoding: 'utf8',
      timeout: 10_000,
    });

  test('exits although a Redis client was created', async () => {
    const daemon = await start(EPHEMERAL_PORTS);
    const config = place().file(
      'sluice.yaml',
      'limits: { a: { bucket: { rate: 1/s }, redis: { url: "redis://127.0.0.1:1" } } }\n',
    );
    const taken = fail(
      '--config',
      config,
      ...EPHEMERAL_PORTS.slice(2),
      '--line',
      daemon.addresses.line[0],
    );
    expect(taken.status).toBe(69);
    expect(taken.stderr).toMatch(/`listen.line` to be an address that is not in use/);
  });

  test.each([
    [
      'an invalid certificate',
      (notes: string) => `line: { at: '127.0.0.1:0', tls: { cert: ${notes}, key: ${KEY} } }`,
      /`listen.line.tls` to be a certificate and its key in PEM \(.*no start line/,
    ],
    [
      'a path whose folder is a file',
      (notes: string) => `line: ${notes}/line.sock`,
      /`listen.line` to be .*, got/,
    ],
    [
      'a missing folder',
      (notes: string) => `line: ${notes}-folder/line.sock`,
      /`listen.line` to be a path in an existing folder, got/,
    ],
  ])('%s is an error in one line', (_, listen, expected) => {
    const { file } = place();
    const notes = file('notes.txt', 'dear diary');
    const config = file('sluice.yaml', `listen: { ${listen(notes)}, resp: off, http: off }\n`);
    const failed = fail('--config', config);
    expect(failed.stderr).toMatch(expected);
    expect(failed.stderr).toMatch(/^sluice serve: .*\n$/);
    expect(failed.status).toBe(2);
  });
});

describe('reload', () => {
  const listenAt = (line: string): string =>
    `listen: { line: ${line}, resp: off, http: '127.0.0.1:0' }\n`;

  /** One check over TLS. */
  const checkOverTls = (port: number): Promise<string> =>
    new Promise((resolve, reject) => {
      const socket = connectTls({ port, host: 'localhost', ca: readFileSync(CERT) });
      socket.on('data', (chunk) => resolve(String(chunk)));
      socket.on('error', reject);
      socket.end('a\n');
    });

  test('with a missing certificate fails, and the old one stays in use', async () => {
    const { path, file } = place();
    const cert = join(path, 'cert.pem');
    copyFileSync(CERT, cert);
    const config = file('sluice.yaml', listenAt(TLS_AT('127.0.0.1:0', cert)));
    const daemon = await start(['--config', config]);
    rmSync(cert);
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/error reload failed.*`listen.line.tls` to be files that can be read/);
    writeFileSync(cert, 'half a certif');
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/error reload failed.*a certificate and its key in PEM/);
    expect(await checkOverTls(daemon.port('line'))).toBe('OK\n');
    const metrics = await (await fetch(`http://${daemon.addresses.http[0]}/metrics`)).text();
    expect(metrics).toContain('sluice_reloads_total{result="failed"} 2');
  });

  test('adds TLS to an open port and removes it again', async () => {
    const { addresses, config, daemon } = await startAt(1, ([one]) => listenAt(one));
    const [at] = addresses;
    writeFileSync(config, listenAt(TLS_AT(at)));
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/info reloaded/);
    expect(daemon.log()).toContain(`info listening protocol=line at=${at}`);
    expect(await checkOverTls(daemon.port('line'))).toBe('OK\n');
    writeFileSync(config, listenAt(at));
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/info reloaded(.|\n)*info reloaded/);
    expect(await exchange(at, 'a\n')).toBe('OK\n');
  });

  test('changes the mode of a socket', async () => {
    const { path, file } = place();
    const socket = join(path, 'line.sock');
    const config = file('sluice.yaml', listenAt(`{ at: ${socket}, mode: '600' }`));
    const daemon = await start(['--config', config]);
    writeFileSync(config, listenAt(`{ at: ${socket}, mode: '666' }`));
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/info reloaded/);
    expect(statSync(socket).mode & 0o777).toBe(0o666);
    expect(await exchange(socket, 'a\n')).toBe('OK\n');
  });

  test('creates a socket again that was removed', async () => {
    const socket = join(place().path, 'line.sock');
    const daemon = await start([...EPHEMERAL_PORTS, '--line', socket]);
    rmSync(socket);
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/info reloaded/);
    expect(await exchange(socket, 'a\n')).toBe('OK\n');
    expect(await exchange(daemon.addresses.line[0], 'a\n')).toBe('OK\n');
  });

  test('keeps its old listeners if a new one cannot be opened', async () => {
    const other = await start(EPHEMERAL_PORTS);
    const { addresses, config, daemon } = await startAt(2, (both) => listenAt(`[${both}]`));
    const [one, two] = addresses;
    writeFileSync(config, listenAt(`[${TLS_AT(one)}, ${TLS_AT(two)}, ${other.addresses.line[0]}]`));
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/error reload failed.*an address that is not in use/);
    expect(await exchange(one, 'a\n')).toBe('OK\n');
    expect(await exchange(two, 'a\n')).toBe('OK\n');
  });
});

describe('listener that cannot be reopened', () => {
  test('affects no other listener, and opens with the next valid reload', async () => {
    const other = await start(EPHEMERAL_PORTS);
    const cert = join(place().path, 'cert.pem');
    copyFileSync(CERT, cert);
    const lines = (...line: string[]): string =>
      `listen: { line: [${line.join(', ')}], resp: off, http: off }\n`;
    const before = ([one, two]: readonly string[]): string => lines(TLS_AT(one, cert), two);
    const { addresses, config, daemon } = await startAt(2, before);
    const [one, two] = addresses;
    rmSync(cert);
    writeFileSync(config, lines(one, TLS_AT(two), other.addresses.line[0]));
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/error reload failed.*`listen.line.tls` to be files that can be read/);
    expect(await exchange(two, 'a\n')).toBe('OK\n');
    copyFileSync(CERT, cert);
    writeFileSync(config, before(addresses));
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/info listening protocol=line at=127/);
    await expect(exchange(one, 'a\n').catch(() => 'closed')).resolves.not.toContain('OK'); // TLS again
  });
});

describe('startup messages', () => {
  test('warn that the snapshot file is not writable', async () => {
    const state = join(place().path, 'missing', 'state');
    const daemon = await start([...EPHEMERAL_PORTS, '--snapshot', state]);
    expect(daemon.log()).toMatch(/warn snapshot file is not writable .*ENOENT/);
  });

  test('show example commands for TLS and a password; a command without --tls is told to set it', async () => {
    const listen = `listen: { line: ${TLS_AT('127.0.0.1:0')}, resp: ${TLS_AT('127.0.0.1:0')}, http: ${TLS_AT('127.0.0.1:0')} }\n`;
    const env = { SLUICE_RESP_PASSWORD: 'correct-horse-battery' };
    const daemon = await start(['--config', place().file('sluice.yaml', listen)], env);
    expect(daemon.out()).toContain(
      `| openssl s_client -quiet -no_ign_eof -connect ${daemon.addresses.line[0]}\n`,
    );
    expect(daemon.out()).toContain('redis-cli --tls --insecure -h 127.0.0.1 ');
    expect(daemon.out()).toMatch(/ -p \d+ --askpass CL\.THROTTLE /);
    for (const [command, at] of [
      [['controls'], daemon.addresses.http[0]],
      [['check', 'alice'], daemon.addresses.resp[0]],
    ] as const) {
      const args = ['dist/bin/sluice.js', ...command, '--at', at];
      const { stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
      expect(stderr).toMatch(/TLS.* set `--tls`/);
    }
    expect(daemon.out()).toContain(`curl -ik 'https://${daemon.addresses.http[0]}/`);
  });

  test('show where the limits come from', async () => {
    const config = place().file('sluice.yaml', 'limits: {}\n');
    const daemon = await start([...EPHEMERAL_PORTS, '--config', config, '--rate', '5/s']);
    expect(daemon.out()).toContain('1 limit from the command line\n');
  });

  test('are JSON after a reload with log: json', async () => {
    const config = place().file('sluice.yaml', 'log: text\n');
    const daemon = await start([...EPHEMERAL_PORTS, '--config', config]);
    writeFileSync(config, 'log: json\n');
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/"message":"reloaded"/);
  });

  test('log why Redis is unavailable before the first check', async () => {
    const limit = (url: string): string =>
      `limits: { a: { bucket: { rate: 1/s }, redis: { url: '${url}' } } }\n`;
    const port = await freePort();
    const config = place().file('sluice.yaml', limit(`redis://:hunter2@127.0.0.1:${port}`));
    const daemon = await start([...EPHEMERAL_PORTS, '--config', config]);
    await daemon.waitForLog(/warn redis unavailable url=redis:\/\/127.*reason=".*ECONNREFUSED/);
    expect(await daemon.stop()).toBe(0);
    expect(daemon.log().match(/redis/g)).toHaveLength(2); // once, and in its URL
  });
});
