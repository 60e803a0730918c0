import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { daemonFixture, EPHEMERAL_PORTS, exchange, waitUntil } from './support/daemon.ts';
import { hasShellTools, systemdNotify } from './support/services.ts';

const children: ChildProcess[] = [];
const { start, place, end } = daemonFixture();

afterEach(async () => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
  await end();
});

function spawned(command: string, args: readonly string[]) {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  children.push(child);
  const texts = { out: '', log: '' };
  child.stdout.on('data', (chunk) => {
    texts.out += chunk;
  });
  child.stderr.on('data', (chunk) => {
    texts.log += chunk;
  });
  return { child, texts };
}

const cli = (...args: string[]) =>
  spawnSync(process.execPath, ['dist/bin/sluice.js', ...args], { encoding: 'utf8' });

/** Whether a process has a handler for SIGHUP. */
const catchesHangup = (pid: number): boolean => {
  const [, caught = '0'] =
    /^SigCgt:\s+([0-9a-f]+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
  return (BigInt(`0x${caught}`) & 1n) === 1n;
};

describe.skipIf(process.platform !== 'linux')('SIGHUP while the daemon starts', () => {
  test('does not end it: the configuration is read again once it is ready', async () => {
    const { child, texts } = spawned(process.execPath, [
      'dist/bin/sluice.js',
      'serve',
      ...EPHEMERAL_PORTS,
    ]);
    await waitUntil(() => catchesHangup(child.pid ?? 0));
    expect(texts.out).toBe('');
    for (let n = 0; n < 20; n++) child.kill('SIGHUP');
    await waitUntil(() => texts.log.includes('info reloaded'));
    expect(texts.out).toContain('ready\n');
    child.kill('SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
  });

  test('is held before the program is loaded, which takes most of the time', () => {
    const main = readFileSync('dist/bin/sluice.js', 'utf8');
    const held = main.indexOf('process.on("SIGHUP"');
    expect(held).toBeGreaterThan(0);
    expect(main.indexOf('import("./chunks/run.js")')).toBeGreaterThan(held);
    expect(main).not.toMatch(/^import |^export .* from /m); // these would be loaded before the first line
  });
});

describe.skipIf(!hasShellTools() || !systemdNotify())('under systemd', () => {
  /** A socket as systemd has it, and what it received. */
  async function notifySocket() {
    const path = join(place().path, 'notify');
    const { texts } = spawned('nc', ['-lkuU', path]);
    await waitUntil(() => spawnSync('test', ['-S', path]).status === 0);
    return { path, received: () => texts.out };
  }

  test('says that it is ready and stopping, and that it is alive until it hangs', async () => {
    const { path, received } = await notifySocket();
    const env = { NOTIFY_SOCKET: path, WATCHDOG_USEC: '200000' };
    const daemon = await start(EPHEMERAL_PORTS, env);
    await waitUntil(() => received().includes('STATUS=1 limit from the defaults'));
    expect(received()).toContain('READY=1');
    const beats = (): number => received().split('WATCHDOG=1').length - 1;
    await waitUntil(() => beats() >= 3);
    daemon.signal('SIGSTOP');
    await new Promise((resolve) => setTimeout(resolve, 300)); // what was sent before it was stopped
    const before = beats();
    await new Promise((resolve) => setTimeout(resolve, 600));
    expect(beats()).toBe(before);
    daemon.signal('SIGCONT');
    await waitUntil(() => beats() > before);
    expect(received()).not.toContain('STOPPING=1');
    expect(await daemon.stop()).toBe(0);
    await waitUntil(() => received().includes('STOPPING=1'));
  });

  test('another process has the watchdog: sends no signs of life', async () => {
    const { path, received } = await notifySocket();
    const env = { NOTIFY_SOCKET: path, WATCHDOG_USEC: '20000', WATCHDOG_PID: '1' };
    const daemon = await start(EPHEMERAL_PORTS, env);
    await waitUntil(() => received().includes('READY=1'));
    await daemon.stop();
    await waitUntil(() => received().includes('STOPPING=1'));
    expect(received()).not.toContain('WATCHDOG');
  });

  test('a socket that does not exist: serves all the same', async () => {
    const env = { NOTIFY_SOCKET: join(place().path, 'none'), WATCHDOG_USEC: '20000' };
    const daemon = await start(EPHEMERAL_PORTS, env);
    expect(await exchange(daemon.addresses.line[0], 'a\n')).toBe('OK\n');
    expect(await daemon.stop()).toBe(0);
  });

  test('deploy/sluice.service: systemd finds no mistake in it', () => {
    const { status, stderr } = spawnSync('systemd-analyze', ['verify', 'deploy/sluice.service'], {
      encoding: 'utf8',
    });
    const own = stderr.split('\n').filter((line) => line.includes('deploy/sluice.service'));
    expect({ status, own }).toEqual({ status: 0, own: [] });
  });
});

describe('sluice reload', () => {
  const configOf = (http: string, burst: number, more = ''): string =>
    `listen: { line: '127.0.0.1:0', resp: off, http: ${http} }
limits: { all: { bucket: { rate: 1/h, burst: ${burst} } } }
admin: { token: at-least-sixteen-characters }
${more}`;

  test('finds the daemon and its token in the configuration, and reports success', async () => {
    const { path, file } = place();
    const socket = join(path, 'http.sock');
    const config = file('sluice.yaml', configOf(socket, 3));
    const daemon = await start(['--config', config]);
    writeFileSync(config, configOf(socket, 7));
    const { status, stdout, stderr } = cli('reload', '--config', config);
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(stdout).toBe(`reloaded ${config}: 1 limit, 1 keep their counts\n`);
    const replies = await exchange(daemon.addresses.line[0], 'new\n'.repeat(8));
    expect(replies).toBe(`${'OK\n'.repeat(7)}NO\n`);
  });

  test('a mistake in the file: exit code 2, says where, and the daemon goes on', async () => {
    const { path, file } = place();
    const socket = join(path, 'http.sock');
    const config = file('sluice.yaml', configOf(socket, 3));
    const daemon = await start(['--config', config]);
    writeFileSync(config, configOf(socket, 3, 'limmits: {}'));
    const { status, stderr } = cli('reload', '--config', config);
    expect(status).toBe(2);
    expect(stderr).toMatch(/sluice.yaml:4:1.*limmits/s);
    expect(daemon.log()).not.toContain('reload');
  });

  test('a change that the daemon refuses: exit code 1 and the reason', async () => {
    const { path, file } = place();
    const socket = join(path, 'http.sock');
    const config = file('sluice.yaml', configOf(socket, 3));
    await start(['--config', config]);
    const peers = 'peers: { udp: 127.0.0.1:7613, name: a }';
    writeFileSync(config, configOf(socket, 3, peers));
    const { status, stderr } = cli('reload', '--config', config);
    expect(stderr).toContain('`peers` has changed');
    expect(status).toBe(1);
  });

  test('another token in the file than the daemon has: exit code 2, and says how to reload', async () => {
    const { path, file } = place();
    const socket = join(path, 'http.sock');
    const config = file('sluice.yaml', configOf(socket, 3));
    const daemon = await start(['--config', config]);
    writeFileSync(config, configOf(socket, 3).replace('sixteen', 'seventeen'));
    const { status, stderr } = cli('reload', '--config', config);
    expect(status).toBe(2);
    expect(stderr).toMatch(/requires another admin token.*send it SIGHUP/s);
    daemon.signal('SIGHUP');
    await expect.poll(() => cli('reload', '--config', config).status, { timeout: 15_000 }).toBe(0);
  });

  test('a daemon without a file: exit code 1, says how to start it, and no success is counted', async () => {
    const { path, file } = place();
    const socket = join(path, 'http.sock');
    const daemon = await start(['--line', '127.0.0.1:0', '--resp', 'off', '--http', socket]);
    const open = file('sluice.yaml', `listen: { http: ${socket} }`);
    for (const flags of [
      ['--at', socket],
      ['--config', open],
    ]) {
      const { status, stdout, stderr } = cli('reload', ...flags);
      expect({ status, stdout }).toEqual({ status: 1, stdout: '' });
      expect(stderr).toMatch(/started without a configuration file.*start it with --config FILE/);
    }
    expect(daemon.log()).not.toContain('info reloaded');
  });

  test('another file than the daemon reads: exit code 1, names both, and the daemon goes on', async () => {
    const { path, file } = place();
    const socket = join(path, 'http.sock');
    const used = file('sluice.yaml', configOf(socket, 3));
    const daemon = await start(['--config', used]);
    const other = file('other.yaml', configOf(socket, 7));
    const { status, stdout, stderr } = cli('reload', '--config', other);
    expect({ status, stdout }).toEqual({ status: 1, stdout: '' });
    expect(stderr).toContain(`the daemon reads, ${used}, got ${other}\n`);
    expect(daemon.log()).not.toContain('reload');
  });

  test('a link to the file, and a relative path, are the same file', async () => {
    const { path, file } = place();
    const socket = join(path, 'http.sock');
    const config = file('sluice.yaml', configOf(socket, 3));
    await start(['--config', relative(process.cwd(), config)]);
    symlinkSync(config, join(path, 'link.yaml'));
    const { status, stdout } = cli('reload', '--config', join(path, 'link.yaml'));
    expect({ status, stdout }).toEqual({
      status: 0,
      stdout: `reloaded ${config}: 1 limit, 1 keep their counts\n`,
    });
  });

  test('a rule of another kind: exit code 0, and warns that the limit starts anew', async () => {
    const { path, file } = place();
    const socket = join(path, 'http.sock');
    const config = file('sluice.yaml', configOf(socket, 3));
    await start(['--config', config]);
    const window = 'window: { limit: 3, per: 1h }';
    writeFileSync(config, configOf(socket, 3).replace(/bucket: \{.*?\}/, window));
    const { status, stdout, stderr } = cli('reload', '--config', config);
    expect({ status, stdout }).toEqual({
      status: 0,
      stdout: `reloaded ${config}: 1 limit, 0 keep their counts\n`,
    });
    expect(stderr).toBe('warning: all: limit starts anew: its rule is of another kind\n');
  });

  test('without a daemon: exit code 2, and names the address', () => {
    const config = place().file('sluice.yaml', configOf(join(place().path, 'http.sock'), 3));
    const { status, stderr } = cli('reload', '--config', config);
    expect(status).toBe(2);
    expect(stderr).toMatch(/http\.sock is unavailable/);
  });
});

test('log level warn: leaves out what is below it, and a reload changes it', async () => {
  const { file } = place();
  const text = (level: string): string =>
    `listen: { line: '127.0.0.1:0', resp: off, http: '127.0.0.1:0' }\nlog: { level: ${level} }\n`;
  const config = file('sluice.yaml', text('warn'));
  const daemon = await start(['--config', config]);
  const reload = () => fetch(`http://${daemon.addresses.http[0]}/reload`, { method: 'POST' });
  expect((await reload()).status).toBe(200);
  writeFileSync(config, 'limits: 3');
  expect((await reload()).status).toBe(422);
  await daemon.waitForLog(/error reload failed/);
  expect(daemon.log()).not.toContain(' info ');
  writeFileSync(config, text('info'));
  expect((await reload()).status).toBe(200);
  await daemon.waitForLog(/info reloaded/);
});
