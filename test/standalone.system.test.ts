/**
 * The one-file daemon and the single executable, each alone in an empty folder, and the Debian package of the file.
 *
 * Code blocks of docs/how-to/deploy.md refer to it.
 */

import { execFile } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { daemonFixture, exchange, type RunningDaemon, waitUntil } from './support/daemon.ts';
import { dpkg, redisCli, redisServer, startRedis } from './support/services.ts';

const run = promisify(execFile);
const { start, place, serve, end } = daemonFixture();
afterAll(end);

const FORMS = [
  { form: 'one file', script: 'scripts/standalone.mjs', built: 'sluice.cjs' },
  { form: 'executable', script: 'scripts/executable.mjs', built: 'sluice' },
] as const;

/** A file beyond the size that the daemon parses without a thread, with `burst` calls of each key. */
const largeConfig = (burst: number): string =>
  [
    `limits: { all: { bucket: { rate: 1/h, burst: ${burst} }, overrides: [`,
    ...Array.from(
      { length: 200 },
      (_, n) => `  { match: customer-${n}, bucket: { rate: 1/h, burst: ${n + 1} } },`,
    ),
    '  ] } }',
  ].join('\n');

const PORTS = ['--line', '127.0.0.1:0', '--resp', '127.0.0.1:0', '--http', '127.0.0.1:0'];

const respCheck = (key: string): string =>
  `*3\r\n$12\r\nSLUICE.CHECK\r\n$3\r\nall\r\n$${key.length}\r\n${key}\r\n`;

describe.each(FORMS)('$form', ({ script, built }) => {
  const folder = place().path;
  const file = join(folder, built);
  const command = built.endsWith('.cjs') ? [process.execPath, file] : [file];
  const config = join(folder, 'sluice.yaml');
  let daemon: RunningDaemon;

  beforeAll(async () => {
    await run(process.execPath, [script]);
    copyFileSync(join('dist/standalone', built), file);
    writeFileSync(config, largeConfig(2));
    daemon = await start(['--config', config, ...PORTS, '--workers', '2'], {}, command);
  }, 120_000);

  const url = (path: string): string => `http://${daemon.addresses.http[0]}${path}`;

  test('tells its version', async () => {
    const [program = '', ...args] = command;
    const { stdout } = await run(program, [...args, '--version'], { cwd: folder });
    const { version } = JSON.parse(readFileSync('package.json', 'utf8'));
    expect(stdout.trim()).toBe(version);
  });

  test('starts its workers from itself, and they relay checks by HTTP, RESP and lines', async () => {
    const metrics = await (await fetch(url('/metrics'))).text();
    expect(metrics).toContain('sluice_workers 2');
    const statuses = [];
    for (let n = 0; n < 3; n++)
      statuses.push((await fetch(url('/check?limit=all&key=web'))).status);
    expect(statuses).toEqual([200, 200, 429]);
    const reply = await exchange(daemon.addresses.resp[0], respCheck('resp'));
    expect(reply).toMatch(/^\*\d+\r\n:1\r\n/);
    expect(await exchange(daemon.addresses.line[0], 'a\n'.repeat(3))).toBe('OK\nOK\nNO\n');
  });

  test('serves the page from inside itself', async () => {
    for (const name of ['index.html', 'page.js', 'page.css', 'icon.svg']) {
      const body = await (await fetch(url(`/page/${name}`))).text();
      expect(body).toBe(readFileSync(`dist/page/${name}`, 'utf8'));
    }
  });

  test('reloads a large configuration by the thread inside itself', async () => {
    writeFileSync(config, largeConfig(4));
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/reloaded/);
    expect(await exchange(daemon.addresses.line[0], 'b\n'.repeat(5))).toBe('OK\nOK\nOK\nOK\nNO\n');
    const replies = await exchange(daemon.addresses.line[0], 'customer-1\n'.repeat(3));
    expect(replies).toBe('OK\nOK\nNO\n');
  });

  test.skipIf(redisServer() === undefined)('contains the client of Redis', async () => {
    const redis = await serve(startRedis);
    const shared = join(folder, 'redis.yaml');
    writeFileSync(
      shared,
      `limits: { all: { bucket: { rate: 1/h, burst: 1 }, redis: { url: 'redis://127.0.0.1:${redis.port}', onUnavailable: deny } } }\n`,
    );
    const sharing = await start(['--config', shared, ...PORTS], {}, command);
    // A daemon is ready before it is connected to Redis; until then it refuses.
    let n = 0;
    await waitUntil(
      async () => (await exchange(sharing.addresses.line[0], `key-${n++}\n`)) === 'OK\n',
    );
    expect(await exchange(sharing.addresses.line[0], 'c\nc\n')).toBe('OK\nNO\n');
    expect(redisCli(redis.port, 'dbsize')).not.toBe('0');
  });

  test('ships the licences of what it contains', () => {
    const licences = readFileSync('dist/standalone/THIRD-PARTY-LICENSES.txt', 'utf8');
    for (const name of ['@nats-io/kv', '@redis/client', 'preact', 're2js', 'uplot', 'yaml'])
      expect(licences).toMatch(new RegExp(`^${name} \\d`, 'm'));
    if (built.endsWith('.cjs')) expect(readFileSync(file, 'utf8')).toContain(licences.slice(0, 60));
  });

  test('has only ASCII characters', () => {
    expect(/[^\0-\x7f]/.exec(readFileSync('dist/standalone/sluice.cjs', 'latin1'))).toBeNull();
  });

  test.runIf(built === 'sluice')('has a code cache that V8 accepts', async () => {
    const spy = join(folder, 'spy.cjs');
    writeFileSync(
      spy,
      `const vm = require('node:vm');
      vm.Script = class extends vm.Script {
        constructor(source, options) {
          super(source, options);
          console.log('rejected', this.cachedDataRejected, options.cachedData.length > 1e6);
        }
      };`,
    );
    const env = { ...process.env, NODE_OPTIONS: `--require ${spy}` };
    const { stdout } = await run(file, ['--version'], { env });
    expect(stdout).toMatch(/^rejected false true$/m);
  });

  test('stops on SIGTERM', async () => {
    expect(await daemon.stop()).toBe(0);
    expect(existsSync(file)).toBe(true);
  });
});

describe.skipIf(dpkg() === undefined)('Debian package', () => {
  const root = place().path;
  const { version } = JSON.parse(readFileSync('package.json', 'utf8'));
  const deb = `dist/standalone/sluice_${version}_all.deb`;
  const at = (path: string): string => join(root, path);
  /** Runs dpkg on a system of its own, in a folder. Node is not a package there. */
  const dpkgThere = (...args: string[]) => {
    const force = '--force-script-chrootless,not-root,depends,confold';
    return run('dpkg', [`--root=${root}`, force, `--log=${at('log')}`, ...args]);
  };

  beforeAll(async () => {
    const env = { ...process.env, DEBFULLNAME: 'Ada', DEBEMAIL: 'ada@example.org' };
    await run('sh', ['deploy/debian/build.sh'], { env });
    for (const folder of ['info', 'updates', 'triggers'])
      mkdirSync(at(`var/lib/dpkg/${folder}`), { recursive: true });
    writeFileSync(at('var/lib/dpkg/status'), '');
    await dpkgThere('--install', deb);
  }, 120_000);

  test('names its version, its maintainer and the Node that it needs', async () => {
    const { stdout } = await run('dpkg-deb', ['--field', deb]);
    expect(stdout).toContain(`\nVersion: ${version}\n`);
    expect(stdout).toContain('\nMaintainer: Ada <ada@example.org>\n');
    const { engines } = JSON.parse(readFileSync('package.json', 'utf8'));
    expect(stdout).toContain(`\nDepends: nodejs (${engines.node.replace('>=', '>= ')})\n`);
  });

  test('what it installs is a daemon that starts with the configuration of the package', async () => {
    const unit = readFileSync(at('usr/lib/systemd/system/sluice.service'), 'utf8');
    const [, command = '', config = ''] =
      /^ExecStart=(\S+) serve --config (\S+)$/m.exec(unit) ?? [];
    const installed = await start(['--config', at(config), ...PORTS], {}, [at(command)]);
    expect(await exchange(installed.addresses.line[0], 'a\n')).toBe('OK\n');
    expect(await installed.stop()).toBe(0);
  });

  test('an upgrade and a removal keep a changed configuration, a purge leaves nothing', async () => {
    const config = at('etc/sluice/sluice.yaml');
    writeFileSync(config, 'limits: {}\n');
    mkdirSync(at('var/lib/sluice'), { recursive: true });
    writeFileSync(at('var/lib/sluice/state'), 'state');
    await dpkgThere('--install', deb);
    expect(readFileSync(config, 'utf8')).toBe('limits: {}\n');
    await dpkgThere('--remove', 'sluice');
    expect(existsSync(at('usr/bin/sluice'))).toBe(false);
    expect(existsSync(at('var/lib/sluice/state'))).toBe(true);
    expect(readFileSync(config, 'utf8')).toBe('limits: {}\n');
    await dpkgThere('--purge', 'sluice');
    for (const path of ['etc/sluice', 'var/lib/sluice', 'usr'])
      expect(existsSync(at(path)), path).toBe(false);
  });
});
