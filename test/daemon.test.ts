import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { get as httpsGet } from 'node:https';
import { connect } from 'node:net';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';
import { afterEach, describe, expect, test, vi } from 'vitest';
import {
  connectTo,
  daemonFixture,
  exchange,
  type RunningDaemon,
  waitUntil,
} from './support/daemon.ts';
import { redisServer } from './support/services.ts';

const { start, place, end } = daemonFixture();

afterEach(end);

const EPHEMERAL = ['--line', '127.0.0.1:0', '--resp', '127.0.0.1:0', '--http', '127.0.0.1:0'];

/** How many of so many checks of a key are allowed. */
const served = async (daemon: RunningDaemon, key: string, times: number): Promise<number> =>
  (await exchange(daemon.addresses.line[0], `${key}\n`.repeat(times))).split('OK\n').length - 1;

describe('sluice serve', () => {
  test('prints its addresses with an example command each, and listens there', async () => {
    const daemon = await start(EPHEMERAL);
    expect(daemon.out()).toMatch(/^sluice \d+\.\d+\.\d+, 1 limit from the defaults\n/);
    expect(daemon.out()).toContain(`printf 'alice\\n' | nc -w 1 127.0.0.1 ${daemon.port('line')}`);
    expect(await exchange(daemon.addresses.line[0], `${'alice\n'.repeat(12)}bob\n`)).toBe(
      `${'OK\n'.repeat(10)}NO\nNO\nOK\n`,
    );
  });

  test('prints example commands with a key that a limit counts', async () => {
    const config = place().file(
      'sluice.yaml',
      'limits: { api: { bucket: { rate: 1/h, burst: 1 }, match: "ip:*" } }',
    );
    const daemon = await start(['--config', config, ...EPHEMERAL]);
    const [, url] = /curl -i '(.*)'/.exec(daemon.out()) ?? [];
    const statuses = [(await fetch(url)).status, (await fetch(url)).status];
    expect([url, ...statuses]).toEqual([expect.stringMatching(/key=ip:192\.0\.2\.1$/), 200, 429]);
  });

  test('counts a key together on TCP and on a Unix socket', async () => {
    const socket = join(place().path, 'line.sock');
    const daemon = await start([...EPHEMERAL, '--line', socket, '--burst', '3']);
    expect(await exchange(daemon.addresses.line[0], 'C\nC\n')).toBe('OK\nOK\n');
    expect(await exchange(socket, 'C\nC\n')).toBe('OK\nNO\n');
    await daemon.stop();
    expect(existsSync(socket)).toBe(false);
  });

  test('prints one line for an invalid option, exit code 2, and for a port in use, exit code 69', async () => {
    const run = (...args: string[]) =>
      spawnSync(process.execPath, ['dist/bin/sluice.js', 'serve', ...args], { encoding: 'utf8' });
    expect(run('--burst', 'many')).toMatchObject({
      status: 2,
      stderr: expect.stringMatching(/^sluice serve: expected `--burst` to be a number, got "many"/),
    });
    const daemon = await start(EPHEMERAL);
    const taken = run(...EPHEMERAL.slice(2), '--line', daemon.addresses.line[0]);
    expect(taken.stderr).toMatch(
      /expected `listen.line` to be an address that is not in use, got "127/,
    );
    expect(taken.status).toBe(69); // not 2, after which systemd does not start it again
  });

  test('goes on serving after the reader of its output has closed the pipe', async () => {
    const socket = join(place().path, 'line.sock');
    const args = `serve --line ${socket} --resp off --http off`;
    const shell = `node dist/bin/sluice.js ${args} > >(head -n 1 >/dev/null) & echo $!; wait`;
    const child = spawn('bash', ['-c', shell], { stdio: ['ignore', 'pipe', 'ignore'] });
    const [pid] = await once(child.stdout, 'data');
    try {
      await waitUntil(() => existsSync(socket));
      await waitUntil(async () => (await exchange(socket, 'a\n').catch(() => '')) !== '');
      // The startup text is printed before a later connection is accepted.
      expect(await exchange(socket, 'a\n')).toBe('OK\n');
    } finally {
      process.kill(Number(pid), 'SIGTERM');
    }
  });

  test('replaces the socket of a killed daemon, but no regular file', async () => {
    const { path, file } = place();
    const socket = join(path, 'line.sock');
    const first = await start([...EPHEMERAL, '--line', socket]);
    await first.stop('SIGKILL');
    expect(existsSync(socket)).toBe(true);
    const second = await start([...EPHEMERAL, '--line', socket]);
    expect(await exchange(socket, 'a\n')).toBe('OK\n');
    await second.stop();
    const notes = file('notes.txt', 'dear diary');
    await expect(start([...EPHEMERAL, '--line', notes])).rejects.toThrow(
      /`listen.line` to be a free path/,
    );
    expect(readFileSync(notes, 'utf8')).toBe('dear diary');
  });
});

describe('reload', () => {
  const CONFIG = 'limits: { mine: { bucket: { rate: 1/m, burst: 3 } } }\n';

  test('applies changes and keeps the state of unchanged limits', async () => {
    const { file } = place();
    const config = file('sluice.yaml', CONFIG);
    const daemon = await start([...EPHEMERAL, '--config', config]);
    expect(await served(daemon, 'alice', 5)).toBe(3);
    writeFileSync(config, `${CONFIG}allow: [bob]\n`);
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/info reloaded limits=1 kept=1/);
    expect(await served(daemon, 'alice', 5)).toBe(0);
    expect(await served(daemon, 'bob', 5)).toBe(5);
  });

  test('an invalid file changes nothing and is logged', async () => {
    const { file } = place();
    const config = file('sluice.yaml', CONFIG);
    const daemon = await start([...EPHEMERAL, '--config', config]);
    writeFileSync(config, 'limits: { mine: { bucket: { rate: fast } } }\n');
    daemon.signal('SIGHUP');
    await daemon.waitForLog(
      /error reload failed, the last valid configuration stays.*limits.mine.bucket.rate.*got \\"fast\\""\n/,
    );
    expect(await served(daemon, 'alice', 5)).toBe(3);
  });

  test('keeps connections open and changes listen addresses', async () => {
    const { path, file } = place();
    const [first, second] = [join(path, 'a.sock'), join(path, 'b.sock')];
    const listen = (where: string): string =>
      `${CONFIG}listen: { line: ['127.0.0.1:0', '${where}'], resp: off, http: off }\n`;
    const config = file('sluice.yaml', listen(first));
    const daemon = await start(['--config', config]);
    const socket = connectTo(first);
    const heard: string[] = [];
    socket.on('data', (chunk) => heard.push(String(chunk)));
    socket.write('x\n');
    await waitUntil(() => heard.join('') === 'OK\n');
    writeFileSync(config, listen(second));
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/reloaded/);
    socket.write('x\n');
    await waitUntil(() => heard.join('') === 'OK\nOK\n');
    expect(await exchange(second, 'x\nx\n')).toBe('OK\nNO\n');
    await expect(exchange(first, 'x\n')).rejects.toThrow(/ENOENT|ECONNREFUSED/);
    socket.destroy();
  });
});

describe('restart', () => {
  const BURST = ['--rate', '1/m', '--burst', '5'];

  test('with a snapshot: grants no fresh burst', async () => {
    const state = join(place().path, 'state');
    const args = [...EPHEMERAL, ...BURST, '--snapshot', state];
    const first = await start(args);
    expect(await served(first, 'alice', 4)).toBe(4);
    expect(await first.stop()).toBe(0);
    const second = await start(args);
    expect(await served(second, 'alice', 4)).toBe(1);
    expect(await served(second, 'bob', 9)).toBe(5);
  });

  test('without a snapshot: all keys begin anew', async () => {
    const first = await start([...EPHEMERAL, ...BURST]);
    expect(await served(first, 'alice', 4)).toBe(4);
    expect(await first.stop()).toBe(0);
    expect(await served(await start([...EPHEMERAL, ...BURST]), 'alice', 9)).toBe(5);
  });

  test('starts without state after a corrupt snapshot, and logs it', async () => {
    const state = join(place().path, 'state');
    const args = [...EPHEMERAL, ...BURST, '--snapshot', state];
    const first = await start(args);
    await served(first, 'alice', 9);
    await first.stop();
    truncateSync(state, 40);
    const second = await start(args);
    expect(second.log()).toMatch(/warn snapshot not used .*reason="it is corrupt"/);
    expect(await served(second, 'alice', 9)).toBe(5);
  });

  test('stops although the snapshot cannot be written, and logs it', async () => {
    const daemon = await start([...EPHEMERAL, '--snapshot', '/proc/nowhere/state']);
    expect(await daemon.stop()).toBe(0);
    expect(daemon.log()).toMatch(/error snapshot not written file=\/proc\/nowhere\/state reason=/);
  });

  test('answers pending requests before it stops', async () => {
    const daemon = await start([...EPHEMERAL, '--rate', '1000000/s', '--burst', '1000000']);
    const socket = connectTo(daemon.addresses.line[0]);
    let bytes = 0;
    socket.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
    });
    await new Promise((resolve) => socket.once('connect', resolve));
    await new Promise((sent) => socket.write('alice\n'.repeat(100_000), sent));
    await waitUntil(() => bytes > 0);
    const closed = new Promise((resolve) => socket.once('close', resolve));
    const stopped = daemon.stop();
    await closed;
    expect(bytes).toBe(300_000);
    expect(await stopped).toBe(0);
  });
});

describe('misbehaving clients', () => {
  test('an endless line closes its connection and affects no other client', async () => {
    const daemon = await start(EPHEMERAL);
    const other = connectTo(daemon.addresses.line[0]);
    const heard: string[] = [];
    other.on('data', (chunk) => heard.push(String(chunk)));
    const endless = connectTo(daemon.addresses.line[0]);
    const ended = new Promise((resolve) => endless.once('close', resolve));
    endless.on('error', () => {});
    const pour = (): void => {
      while (!endless.destroyed && endless.write(Buffer.alloc(65_536, 'x')));
    };
    endless.on('drain', pour);
    endless.on('end', () => endless.destroy());
    pour();
    await ended;
    other.write('alice\n');
    await waitUntil(() => heard.join('') === 'OK\n');
    other.destroy();
  });

  test('back-pressure: a client that never reads is not read from, and memory stays bounded', async () => {
    const { file } = place();
    const config = file('sluice.yaml', 'bounds: { slow: 1s }\nlimits: {}\n');
    const daemon = await start([...EPHEMERAL, '--config', config]);
    const memory = (): number =>
      Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${daemon.pid}/status`, 'utf8'))?.[1]) * 1024;
    await served(daemon, 'warm', 1000);
    const before = memory();
    const deaf = connect(daemon.port('line'), '127.0.0.1');
    deaf.on('error', () => {});
    const closed = new Promise((resolve) => deaf.once('close', resolve));
    deaf.pause();
    let sent = 0;
    const pour = (): void => {
      for (let n = 0; n < 256 && sent < 64 * 1024 * 1024; n++) {
        sent += 65_536;
        if (!deaf.write(Buffer.alloc(65_536, 'tag\n'))) return;
      }
    };
    deaf.on('drain', pour);
    pour();
    expect(await served(daemon, 'other', 100)).toBe(100);
    expect(memory() - before).toBeLessThan(64 * 1024 * 1024);
    await closed; // disconnected after bounds.slow
    expect(await served(daemon, 'other', 100)).toBe(100);
  });

  test('connections above the bound are refused until one closes', async () => {
    const { file } = place();
    const config = file('sluice.yaml', 'bounds: { connections: 3 }\n');
    const daemon = await start([...EPHEMERAL, '--config', config]);
    const held = await Promise.all(
      Array.from({ length: 3 }, async () => {
        const socket = connectTo(daemon.addresses.line[0]);
        socket.write('a\n');
        await new Promise((resolve) => socket.once('data', resolve));
        return socket;
      }),
    );
    await expect(exchange(daemon.addresses.line[0], '')).resolves.toBe('');
    const refused = await exchange(daemon.addresses.line[0], 'a\n').catch(
      (error: Error) => error.message,
    );
    expect(refused).toMatch(/^$|ECONNRESET|EPIPE/);
    held[0].destroy();
    await waitUntil(
      async () => (await exchange(daemon.addresses.line[0], 'b\n').catch(() => '')) === 'OK\n',
    );
    for (const socket of held) socket.destroy();
  });
});

describe('TLS', () => {
  const files = 'cert: test/support/tls/cert.pem, key: test/support/tls/key.pem';

  test('is used where configured, and a client without TLS is disconnected', async () => {
    const config = place().file(
      'sluice.yaml',
      `listen: { line: { at: '127.0.0.1:0', tls: { ${files} } }, resp: off, http: off }\n`,
    );
    const daemon = await start(['--config', config]);
    const ca = readFileSync('test/support/tls/cert.pem');
    const answer = await new Promise<string>((resolve, reject) => {
      const socket = connectTls({ port: daemon.port('line'), host: 'localhost', ca });
      let said = '';
      socket.on('data', (chunk) => {
        said += chunk;
      });
      socket.on('error', reject);
      socket.on('close', () => resolve(said));
      socket.end(`${'alice\n'.repeat(11)}`);
    });
    expect(answer).toBe(`${'OK\n'.repeat(10)}NO\n`);
    const plain = await exchange(daemon.addresses.line[0], 'alice\n').catch(() => '');
    expect(plain).not.toContain('OK');
  });

  test.each([
    ['a variable', { SLUICE_HTTP: '0.0.0.0:0' }, [], 'SLUICE_HTTP'],
    [
      'a variable for a listener that the file turns off',
      { SLUICE_RESP: '127.0.0.1:0' },
      [],
      'SLUICE_RESP',
    ],
    ['a flag', {}, ['--http', '127.0.0.1:0'], '--http'],
  ])(
    'is not dropped by %s: serve and config check name both places',
    async (_, env, flags, source) => {
      const config = place().file(
        'sluice.yaml',
        `listen:\n  line: off\n  resp: off\n  http: { at: '127.0.0.1:0', tls: { ${files} } }\n`,
      );
      const field = source === 'SLUICE_RESP' ? 'resp' : 'http';
      const places = new RegExp(
        `sluice\\.yaml:\\d+:\\d+: ${source} .*listen\\.${field}.*--override`,
      );
      await expect(start(['--config', config, ...flags], env)).rejects.toThrow(places);
      const checked = spawnSync(
        process.execPath,
        ['dist/bin/sluice.js', 'config', 'check', config, ...flags],
        { encoding: 'utf8', env: { ...process.env, ...env } },
      );
      expect(checked).toMatchObject({ status: 1, stderr: expect.stringMatching(places) });
      const daemon = await start(['--config', config, ...flags, '--override'], env);
      if (field === 'http')
        expect((await fetch(`http://${daemon.addresses.http[0]}/healthz`)).status).toBe(200);
      else expect(daemon.addresses.resp).toHaveLength(1);
    },
  );

  test('a reload of a file that now has TLS is refused while a variable sets the listener without', async () => {
    const file = place();
    const config = file.file('sluice.yaml', 'limits: {}\n');
    const daemon = await start(['--config', config], {
      SLUICE_LINE: '127.0.0.1:0',
      SLUICE_RESP: 'off',
      SLUICE_HTTP: 'off',
    });
    file.file('sluice.yaml', `listen: { line: { at: '127.0.0.1:0', tls: { ${files} } } }\n`);
    daemon.signal('SIGHUP');
    await daemon.waitForLog(/reload failed.*SLUICE_LINE/);
    expect(await exchange(daemon.addresses.line[0], 'alice\n')).toBe('OK\n');
  });

  test('a missing file is an error in one line', async () => {
    const config = place().file(
      'sluice.yaml',
      "listen: { line: { at: '127.0.0.1:0', tls: { cert: nowhere.pem, key: nowhere.pem } } }\n",
    );
    await expect(start(['--config', config])).rejects.toThrow(
      /expected `listen.line.tls` to be files that can be read \(ENOENT.*nowhere.pem/,
    );
  });
});

describe('sluice check', () => {
  const check = (...args: string[]) => {
    const command = ['dist/bin/sluice.js', 'check', ...args];
    const { status, stdout, stderr } = spawnSync(process.execPath, command, { encoding: 'utf8' });
    return { status, said: stdout + stderr };
  };

  test('prints the decision, and its exit code is the verdict', async () => {
    const daemon = await start([...EPHEMERAL, '--rate', '1/m', '--burst', '3']);
    const at = ['--at', daemon.addresses.resp[0]];
    expect(check('alice', ...at, '--cost', '2', '--deadline', '5000')).toEqual({
      status: 0,
      said: 'OK, 1 left\n',
    });
    expect(await exchange(daemon.addresses.line[0], 'alice\nalice\n')).toBe('OK\nNO\n');
    expect(check('alice', ...at)).toMatchObject({
      status: 1,
      said: expect.stringMatching(/^NO, limit default: try again in \d+ ms\n$/),
    });
    expect(JSON.parse(check('alice', ...at, '--cost', '9', '--json').said)).toEqual({
      verdict: 'deny',
      retryAfterMs: null,
      remaining: 0,
      limit: 'default',
    });
    expect(check('alice', ...at, '--limit', 'nightly', '--open')).toEqual({
      status: 2,
      said: "sluice check: no limit is named 'nightly'\n",
    });
    await daemon.stop();
    expect(check('alice', ...at).said).toMatch(
      /^sluice check: sluice at .* is unavailable: .*ECONNREFUSED/,
    );
    expect(check('alice', ...at, '--open').status).toBe(0);
    expect(check('alice', ...at, '--open', '--json').said).toMatch(/^{"verdict":"allow"}\n/);
  });

  test('prints "never" for a denied key, and names an invalid option', async () => {
    const config = place().file(
      'sluice.yaml',
      'deny: [mallory]\nlimits: { sink: { concurrency: 1, match: sink } }\n',
    );
    const daemon = await start([...EPHEMERAL, '--config', config]);
    const at = ['--at', String(daemon.port('resp'))];
    expect(check('mallory', ...at)).toEqual({ status: 1, said: 'NO: never\n' });
    for (let n = 0; n < 2; n++) expect(check('sink', ...at).status).toBe(0); // nothing is in flight
    const warning = /warn checks of this limit take no permit.* limit=sink/g;
    await vi.waitFor(() => expect(daemon.log().match(warning)).toHaveLength(1));
    await fetch(`http://${daemon.addresses.http[0]}/check?key=sink&hold=1`);
    expect(check('sink', ...at).said).toBe('NO, limit sink: until a call settles\n');
    expect(check('sink', '--deadline', '6x').said).toMatch(
      /^sluice check: expected `--deadline` to be a duration longer than 0/,
    );
    expect(check('sink', '--at', 'a b').said).toMatch(/^sluice check: expected `--at` to be/);
  });

  test.each(['peers', 'pool', 'groups'])(
    'sluice %s: reports a daemon that is unavailable, exit code 2',
    async (page) => {
      const daemon = await start(EPHEMERAL);
      const [at] = daemon.addresses.http;
      await daemon.stop();
      expect(spawnSync(process.execPath, ['dist/bin/sluice.js', page, '--at', at])).toMatchObject({
        status: 2,
        stderr: Buffer.from(
          `sluice ${page}: sluice at ${at} is unavailable: ECONNREFUSED; start it with \`sluice serve\`, or set --at\n`,
        ),
      });
    },
  );

  test('sluice peers: an address of another protocol is named as such', async () => {
    const daemon = await start(EPHEMERAL);
    const at = daemon.addresses.resp[0];
    expect(spawnSync(process.execPath, ['dist/bin/sluice.js', 'peers', '--at', at])).toMatchObject({
      status: 2,
      stderr: Buffer.from(
        `sluice peers: the reply of ${at} is not HTTP; --at takes the HTTP address\n`,
      ),
    });
  });

  test('sluice peers: prints why the daemon refuses', async () => {
    const daemon = await start([...EPHEMERAL.slice(0, 4), '--http', '0.0.0.0:0']);
    const at = `127.0.0.1:${daemon.port('http')}`;
    const { stderr } = spawnSync(process.execPath, ['dist/bin/sluice.js', 'peers', '--at', at]);
    expect(String(stderr)).toMatch(
      /^sluice peers: .* refused \/peers: Access from other hosts needs a token: set admin\.token/,
    );
  });

  test('connects with TLS', async () => {
    const ca = 'test/support/tls/cert.pem';
    const tls = `tls: { cert: ${ca}, key: test/support/tls/key.pem }`;
    const config = place().file(
      'sluice.yaml',
      `listen: { line: off, resp: { at: '127.0.0.1:0', ${tls} }, http: off }\n`,
    );
    const daemon = await start(['--config', config]);
    const at = ['--at', `localhost:${daemon.port('resp')}`];
    expect(check('alice', ...at, '--ca', ca)).toEqual({ status: 0, said: 'OK, 9 left\n' });
    expect(check('alice', ...at, '--tls').said).toMatch(/is unavailable: .*self.signed/);
    expect(check('alice', ...at, '--ca', 'nowhere.pem')).toMatchObject({
      status: 2,
      said: expect.stringMatching(/^sluice check: cannot read nowhere.pem: ENOENT/),
    });
  });

  test('sends the password of the environment', async () => {
    const password = 'correct-horse-battery';
    const env = { SLUICE_RESP_PASSWORD: password };
    const daemon = await start(EPHEMERAL, env);
    expect(check('alice', '--at', daemon.addresses.resp[0])).toMatchObject({
      status: 2,
      said: expect.stringMatching(/NOAUTH/),
    });
    process.env.SLUICE_RESP_PASSWORD = password;
    try {
      expect(check('alice', '--at', daemon.addresses.resp[0]).status).toBe(0);
    } finally {
      delete process.env.SLUICE_RESP_PASSWORD;
    }
  });
});

describe.skipIf(redisServer() === undefined)('Redis clients', () => {
  const cli = (daemon: RunningDaemon, ...args: string[]): string =>
    execFileSync('redis-cli', ['-p', String(daemon.port('resp')), ...args], { encoding: 'utf8' });

  test('redis-cli: CL.THROTTLE and SLUICE.CHECK reply', async () => {
    const daemon = await start(EPHEMERAL);
    expect(cli(daemon, 'CL.THROTTLE', 'user123', '15', '30', '60')).toBe('0\n16\n15\n-1\n2\n');
    expect(cli(daemon, 'SLUICE.CHECK', '*', 'alice', '4')).toBe('1\n6\n0\n\n\n\n');
    expect(cli(daemon, 'INFO')).toContain('sluice_version:');
  });

  test('redis-benchmark runs against the daemon', async () => {
    const daemon = await start(EPHEMERAL);
    const port = String(daemon.port('resp'));
    const args = [
      '-p',
      port,
      '-n',
      '20000',
      '-P',
      '16',
      '-q',
      'CL.THROTTLE',
      'a',
      '15',
      '30',
      '300000',
    ];
    expect(execFileSync('redis-benchmark', args, { encoding: 'utf8' })).toMatch(
      /requests per second/,
    );
    expect(cli(daemon, 'CL.THROTTLE', 'a', '15', '30', '300000')).toMatch(/^1\n16\n0\n/);
  });

  test('CL.THROTTLE keeps its state across a restart', async () => {
    const args = [...EPHEMERAL, '--snapshot', join(place().path, 'state')];
    const first = await start(args);
    cli(first, 'CL.THROTTLE', 'a', '4', '1', '3600', '5');
    await first.stop();
    expect(cli(await start(args), 'CL.THROTTLE', 'a', '4', '1', '3600')).toMatch(
      /^1\n5\n0\n(3600|35[5-9]\d)\n/, // minus the duration of the restart
    );
  });
});

describe('HTTP', () => {
  const get = (daemon: RunningDaemon, path: string, init?: RequestInit) =>
    fetch(`http://${daemon.addresses.http[0]}${path}`, init);

  test('a check counts together with the other protocols and has RateLimit headers', async () => {
    const daemon = await start([...EPHEMERAL, '--rate', '1/m', '--burst', '3']);
    expect(await exchange(daemon.addresses.line[0], 'alice\n')).toBe('OK\n');
    const fine = await get(daemon, '/check?key=alice&cost=2');
    expect(fine.status).toBe(200);
    expect(fine.headers.get('ratelimit')).toBe('"default";r=0;t=60');
    const refused = await get(daemon, '/check?key=alice');
    expect(refused.status).toBe(429);
    expect(refused.headers.get('retry-after')).toBe('60');
    expect(refused.headers.get('content-type')).toBe('application/problem+json');
    expect(await exchange(daemon.addresses.line[0], 'alice\n')).toBe('NO\n');
  });

  test('POST /reload replies with the mistakes, and metrics count the failure', async () => {
    const config = place().file('sluice.yaml', 'limits: { a: { bucket: { rate: 1/s } } }\n');
    const daemon = await start([...EPHEMERAL, '--config', config]);
    expect(await (await get(daemon, '/reload', { method: 'POST' })).json()).toMatchObject({
      ok: true,
      kept: 1,
    });
    writeFileSync(config, 'limits: { a: { bucket: {} } }\n');
    const bad = await get(daemon, '/reload', { method: 'POST' });
    expect(bad.status).toBe(422);
    expect(await bad.text()).toContain('limits.a.bucket.rate');
    expect(await (await get(daemon, '/metrics')).text()).toContain(
      'sluice_reloads_total{result="failed"} 1',
    );
  });

  test('admin pages need the token on an address other than loopback', async () => {
    const open = ['--line', 'off', '--resp', 'off', '--http', '0.0.0.0:0'];
    const without = await start(open);
    expect(without.log()).toMatch(/warn admin pages are off without a token/);
    const local = (daemon: RunningDaemon, path: string, token?: string) =>
      fetch(`http://127.0.0.1:${daemon.port('http')}${path}`, {
        headers: token ? { authorization: `Bearer ${token}` } : {},
      });
    expect((await local(without, '/metrics')).status).toBe(403);
    expect((await local(without, '/check?key=a')).status).toBe(200);
    const token = 'correct-horse-battery';
    const daemon = await start(open, { SLUICE_ADMIN_TOKEN: token });
    expect((await local(daemon, '/metrics')).status).toBe(401);
    expect((await local(daemon, '/metrics', 'wrong')).status).toBe(401);
    expect((await local(daemon, '/metrics', token)).status).toBe(200);
    expect((await local(daemon, '/healthz')).status).toBe(200);
  });

  test('metrics stay short with thousands of overrides', async () => {
    const overrides = Array.from(
      { length: 3000 },
      (_, n) => `{ match: k${n}, bucket: { rate: ${2 + (n % 900)}/s } }`,
    );
    const limit = `{ bucket: { rate: 1/s }, overrides: [${overrides.join(', ')}] }`;
    const config = place().file('sluice.yaml', `limits: { a: ${limit} }\n`);
    const daemon = await start([...EPHEMERAL, '--config', config]);
    const text = await (await get(daemon, '/metrics')).text();
    expect(text).toContain('sluice_limits{shown="no"} 701');
    expect(text.length).toBeLessThan(1_000_000);
    expect(text).toContain('sluice_keys{limit="a"}');
  });

  test('/feed sends an event every second', async () => {
    const daemon = await start(EPHEMERAL);
    const response = await get(daemon, '/feed');
    const reader = (response.body as ReadableStream<Uint8Array>).getReader();
    let heard = '';
    const read = async (): Promise<boolean> => {
      heard += Buffer.from((await reader.read()).value ?? []).toString();
      return /event: second\ndata: .*"default":\{"allowed":10,"denied":2/.test(heard);
    };
    await served(daemon, 'alice', 12);
    await waitUntil(read);
    expect(heard).toMatch(/event: snapshot/);
    await reader.cancel();
  });

  test('TLS works for every protocol', async () => {
    const tls = 'tls: { cert: test/support/tls/cert.pem, key: test/support/tls/key.pem }';
    const listen = ['line', 'resp', 'http'].map((own) => `${own}: { at: "127.0.0.1:0", ${tls} }`);
    const config = place().file('sluice.yaml', `listen: { ${listen.join(', ')} }\n`);
    const daemon = await start(['--config', config]);
    const ca = ['--cacert', 'test/support/tls/cert.pem'];
    const url = `https://localhost:${daemon.port('http')}/check?key=a`;
    const ssl = { ca: readFileSync('test/support/tls/cert.pem') };
    const answer = await new Promise<string>((resolve, reject) => {
      httpsGet(url, ssl, (response) => response.on('data', (chunk) => resolve(String(chunk)))).on(
        'error',
        reject,
      );
    });
    expect(JSON.parse(answer)).toMatchObject({ verdict: 'allow' });
    const args = ['--tls', ...ca, '-h', 'localhost', '-p', String(daemon.port('resp')), 'PING'];
    expect(execFileSync('redis-cli', args, { encoding: 'utf8' })).toBe('PONG\n');
  });

  test('a stopped daemon is not ready, and has answered pending checks', async () => {
    const daemon = await start(EPHEMERAL);
    expect((await get(daemon, '/readyz')).status).toBe(200);
    const asked = Promise.all(Array.from({ length: 20 }, () => get(daemon, '/check?key=a')));
    await asked;
    expect(await daemon.stop()).toBe(0);
    await expect(get(daemon, '/readyz')).rejects.toThrow();
  });
});
