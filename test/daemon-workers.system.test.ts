import { execFileSync, fork } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';
import { afterAll, afterEach, describe, expect, test } from 'vitest';
import {
  connectTo,
  countAllowed,
  createTempDir,
  daemonFixture,
  exchange,
  type RunningDaemon,
  waitUntil,
} from './support/daemon.ts';
import { decisionOf, respCaller } from './support/resp-caller.ts';

const fixture = daemonFixture();
const place = createTempDir();
afterEach(() => fixture.end());
afterAll(() => place.remove());

const ANY = '127.0.0.1:0';
const ALL_PORTS = ['--line', ANY, '--resp', ANY, '--http', ANY];
const WORKERS = ['--workers', '2'];

const start = (...args: readonly string[]) => fixture.start([...WORKERS, ...ALL_PORTS, ...args]);

/** The processes that a daemon has started. */
const workersOf = ({ pid }: RunningDaemon): number[] =>
  readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').map(Number);

/** False for a zombie, too. */
const isRunning = (pid: number): boolean => {
  try {
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'));
  } catch {
    return false;
  }
};

/** CPU time of a process, in ticks. */
const cpuOf = (pid: number): number => {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return Number(fields[11]) + Number(fields[12]);
};

const urlOf = (daemon: RunningDaemon): string => `http://127.0.0.1:${daemon.port('http')}`;

const get = async (daemon: RunningDaemon, path: string, init?: RequestInit) => {
  const response = await fetch(urlOf(daemon) + path, init);
  return { status: response.status, text: await response.text() };
};

test('worker: a warning of Node is a message to the daemon, and no text on stderr', async () => {
  const warn =
    'data:text/javascript,setTimeout(() => process.emitWarning("aged", "OldWarning"), 200)';
  const child = fork('dist/bin/workers/worker.js', [], {
    stdio: ['ignore', 'ignore', 'pipe', 'ipc', 'pipe'],
    execArgv: ['--import', warn],
    env: {},
  });
  let printed = '';
  child.stderr?.on('data', (chunk) => {
    printed += chunk;
  });
  const [message] = await once(child, 'message');
  expect(message).toEqual({ warning: { code: 'OldWarning', reason: 'aged' } });
  child.kill('SIGKILL');
  await once(child, 'close');
  expect(printed).toBe('');
});

describe('workers: answers of one daemon', () => {
  test('limit of 100, 24 connections of three protocols: 100 calls are allowed', async () => {
    const daemon = await start('--rate', '1/d', '--burst', '100');
    expect(daemon.out()).toMatch(/^sluice \S+, 1 limit from the command line, 2 workers\n/);
    expect(workersOf(daemon)).toHaveLength(2);
    const before = workersOf(daemon).map(cpuOf);
    const times = 20;
    const line = Array.from({ length: 8 }, () => countAllowed(daemon, 'alice', times));
    const resp = Array.from({ length: 8 }, async () => {
      const client = await respCaller(daemon.port('resp'));
      const replies = Array.from({ length: times }, () =>
        client.call('SLUICE.CHECK', 'default', 'alice'),
      );
      const decisions = (await Promise.all(replies)).map(decisionOf);
      client.close();
      return decisions.filter(({ isAllowed }) => isAllowed).length;
    });
    const http = Array.from({ length: 8 }, async () => {
      let allowed = 0;
      for (let n = 0; n < times; n++)
        if ((await get(daemon, '/check?key=alice')).status === 200) allowed++;
      return allowed;
    });
    const counts = await Promise.all([...line, ...resp, ...http]);
    expect(counts.reduce((sum, count) => sum + count, 0)).toBe(100);
    const { text } = await get(daemon, '/metrics');
    expect(text).toMatch(/sluice_decisions_total\{[^}]*verdict="allow"[^}]*\} 100\n/);
    expect(text).toMatch(/sluice_decisions_total\{[^}]*verdict="deny"[^}]*\} 380\n/);
    expect(text).toMatch(/sluice_connections_accepted_total\{protocol="line"\} 8\n/);
    const after = workersOf(daemon).map(cpuOf);
    expect(after.every((cpu, n) => cpu > before[n])).toBe(true); // both had connections
  });

  test('permit of a RESP connection: settled over HTTP, and free for another connection', async () => {
    const config = place.file('held.yaml', 'limits: { sink: { concurrency: 1 } }');
    const daemon = await start('--config', config);
    const clients = await Promise.all([1, 2, 3].map(() => respCaller(daemon.port('resp'))));
    const hold = (n: number) => clients[n].call('SLUICE.CHECK', 'sink', 'a', '1', 'HOLD');
    const first = decisionOf(await hold(0));
    expect(first.isAllowed).toBe(true);
    expect(decisionOf(await hold(1)).isAllowed).toBe(false);
    const settled = await get(daemon, `/settle?permit=${first.permit}`, { method: 'POST' });
    expect(settled.status).toBe(200);
    expect(decisionOf(await hold(2)).isAllowed).toBe(true);
    for (const client of clients) client.close();
  });

  test('waiting call whose client leaves: the next one gets the permit', async () => {
    const config = place.file('waiting.yaml', 'limits: { sink: { concurrency: 1 } }');
    const daemon = await start('--config', config);
    const clients = await Promise.all([1, 2, 3].map(() => respCaller(daemon.port('resp'))));
    const acquire = (n: number) =>
      clients[n].call('SLUICE.ACQUIRE', 'sink', 'a', 'HOLD', 'WAIT', '20000');
    const waiting = async () =>
      Number(/sluice_waiting\{[^}]*\} (\d+)/.exec((await get(daemon, '/metrics')).text)?.[1]);
    const first = decisionOf(await acquire(0));
    acquire(1).catch(() => {});
    await waitUntil(async () => (await waiting()) === 1);
    const third = acquire(2);
    await waitUntil(async () => (await waiting()) === 2);
    clients[1].socket.destroy();
    await waitUntil(async () => (await waiting()) === 1);
    await get(daemon, `/settle?permit=${first.permit}`, { method: 'POST' });
    expect(decisionOf(await third).isAllowed).toBe(true);
    for (const client of clients) client.close();
  });

  test('pipelined input of some megabytes over TCP and a Unix socket: every request is answered in order', async () => {
    const path = join(place.path, 'line.sock');
    const limits = '{ all: { bucket: { rate: 1/d, burst: 1 } } }';
    const config = place.file('pipelined.yaml', `overload: off\nlimits: ${limits}\n`);
    const daemon = await start('--line', path, '--config', config);
    const requests = 300_000;
    const keys = Array.from({ length: requests }, (_, n) => `key-${n >> 1}`); // each key twice
    const answers = await Promise.all(
      daemon.addresses.line.map((where, n) =>
        exchange(where, keys.map((key) => `${n}:${key}\n`).join('')),
      ),
    );
    for (const answer of answers) expect(answer === 'OK\nNO\n'.repeat(requests / 2)).toBe(true);
  });

  test('event stream: counts calls of all workers', async () => {
    const daemon = await start();
    const aborter = new AbortController();
    const feed = await fetch(`${urlOf(daemon)}/feed`, { signal: aborter.signal });
    const reader = (feed.body as ReadableStream<Uint8Array>).getReader();
    await Promise.all(Array.from({ length: 4 }, () => countAllowed(daemon, 'alice', 5)));
    let text = '';
    for (let n = 0; n < 20 && !text.includes('"allowed":10'); n++)
      text += Buffer.from((await reader.read()).value ?? []).toString();
    expect(text).toContain('"allowed":10');
    aborter.abort();
  });

  test('TLS listener: served by the daemon itself', async () => {
    const files = 'cert: test/support/tls/cert.pem, key: test/support/tls/key.pem';
    const config = place.file(
      'tls.yaml',
      `listen: { line: { at: '127.0.0.1:0', tls: { ${files} } }, resp: off, http: off }\n`,
    );
    const daemon = await fixture.start([...WORKERS, '--config', config]);
    const ca = readFileSync('test/support/tls/cert.pem');
    const port = daemon.port('line');
    const socket = connectTls({
      host: '127.0.0.1',
      port,
      ca,
      checkServerIdentity: () => undefined,
    });
    socket.write('alice\n');
    const [reply] = await once(socket, 'data');
    expect(String(reply)).toBe('OK\n');
    socket.destroy();
  });
});

test('workers, listener of a backend: served by the daemon itself', async () => {
  const groups = `{ self: eu, key: at-least-sixteen-characters, listen: '${ANY}', groups: { eu: {}, us: { at: 'http://127.0.0.1:1' } } }`;
  const limits = '{ api: { bucket: { rate: 10/s }, groups: true } }';
  const config = place.file('groups.yaml', `groups: ${groups}\nlimits: ${limits}\n`);
  const daemon = await start('--config', config);
  const borrow = `http://127.0.0.1:${daemon.port('groups')}/borrow`;
  const signal = AbortSignal.timeout(5000);
  expect((await fetch(borrow, { method: 'POST', body: '{}', signal })).status).toBe(401);
});

describe('workers: misbehaving clients', () => {
  test('client that does not read its replies: disconnected after bounds.slow', async () => {
    const config = place.file('slow.yaml', 'bounds: { slow: 500ms }');
    const daemon = await start('--config', config);
    const socket = connectTo(daemon.addresses.resp[0]);
    socket.pause();
    const closed = once(socket, 'close');
    socket.on('error', () => {});
    const requests = '*1\r\n$4\r\nINFO\r\n'.repeat(20_000); // replies of many megabytes
    socket.write(requests);
    const slow = async () =>
      /sluice_connections_slow_total\{protocol="resp"\} 1\n/.test(
        (await get(daemon, '/metrics')).text,
      );
    await waitUntil(slow);
    socket.resume();
    await closed;
    for (const pid of workersOf(daemon)) {
      const rss = Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]);
      expect(rss).toBeLessThan(200_000); // KiB
    }
  });

  test('more connections than bounds.connections: refused, or an idle one is evicted', async () => {
    const config = place.file('few.yaml', 'bounds: { connections: 4 }');
    const daemon = await start('--config', config);
    const sockets = Array.from({ length: 12 }, () => connectTo(daemon.addresses.line[0]));
    for (const socket of sockets) socket.on('error', () => {});
    const open = async () =>
      Number(
        /sluice_connections\{protocol="line"\} (\d+)/.exec(
          (await get(daemon, '/metrics')).text,
        )?.[1],
      );
    await waitUntil(() => sockets.filter((socket) => socket.closed).length === 8);
    expect(await open()).toBe(4);
    for (const socket of sockets) socket.destroy();
    await waitUntil(async () => (await open()) === 0);
  });
});

describe('workers: crashes and signals', () => {
  test('worker is killed: its connections close, others go on, counts stay, it is replaced', async () => {
    const daemon = await start('--rate', '1/d', '--burst', '10');
    const [victim, survivor] = workersOf(daemon);
    const clients = await Promise.all(
      Array.from({ length: 6 }, () => respCaller(daemon.port('resp'))),
    );
    for (const client of clients) await client.call('SLUICE.CHECK', 'default', 'alice');
    process.kill(victim, 'SIGKILL');
    await waitUntil(() => clients.filter(({ socket }) => socket.closed).length === 3);
    const open = clients.filter(({ socket }) => !socket.closed);
    expect(open).toHaveLength(3);
    for (const { call } of open)
      expect(decisionOf(await call('SLUICE.CHECK', 'default', 'alice')).isAllowed).toBe(true);
    await daemon.waitForLog(new RegExp(`warn worker ended pid=${victim} reason=SIGKILL`));
    expect(await countAllowed(daemon, 'alice', 5)).toBe(1); // while there is one worker less
    await waitUntil(() => workersOf(daemon).length === 2);
    expect(workersOf(daemon)).toContain(survivor);
    expect(await countAllowed(daemon, 'alice', 5)).toBe(0);
    const ready = async () => /sluice_workers 2\n/.test((await get(daemon, '/metrics')).text);
    await waitUntil(ready);
    expect((await get(daemon, '/metrics')).text).toContain('sluice_worker_restarts_total 1\n');
    for (const client of clients) client.close();
  });

  test('all workers are killed: the daemon serves new connections itself', async () => {
    const daemon = await start('--rate', '1/d', '--burst', '10');
    for (const pid of workersOf(daemon)) process.kill(pid, 'SIGKILL');
    await daemon.waitForLog(/worker ended[\s\S]*worker ended/);
    expect(await countAllowed(daemon, 'alice', 20)).toBe(10);
    expect((await get(daemon, '/check?key=alice')).status).toBe(429);
  });

  test('worker that hangs: killed and replaced, and its clients see a closed connection', async () => {
    const daemon = await start();
    const [hanging] = workersOf(daemon);
    const clients = await Promise.all([1, 2].map(() => respCaller(daemon.port('resp'))));
    for (const { call } of clients) await call('PING');
    process.kill(hanging, 'SIGSTOP');
    await waitUntil(() => clients.some(({ socket }) => socket.closed));
    await waitUntil(() => workersOf(daemon).length === 2 && !workersOf(daemon).includes(hanging));
    expect(await countAllowed(daemon, 'bob', 1)).toBe(1);
    for (const client of clients) client.close();
  });

  test('SIGTERM to all processes: pending requests are answered, state is kept, no process is left', async () => {
    const file = join(place.path, 'state');
    const limit = ['--rate', '1/d', '--burst', '10', '--snapshot', file];
    const daemon = await start(...limit);
    const workers = workersOf(daemon);
    const socket = connectTo(daemon.addresses.line[0]);
    let answer = '';
    socket.on('data', (chunk) => {
      answer += chunk;
    });
    socket.write('alice\n'.repeat(4));
    await waitUntil(() => answer.length === 12);
    const closed = once(socket, 'close');
    for (const pid of workers) process.kill(pid, 'SIGTERM'); // as a service manager does
    const stopped = daemon.stop('SIGTERM');
    socket.write('alice\n'.repeat(2));
    expect(await stopped).toBe(0);
    await closed;
    expect(answer).toBe('OK\n'.repeat(6));
    expect(workers.filter(isRunning)).toEqual([]);
    const next = await start(...limit);
    expect(await countAllowed(next, 'alice', 10)).toBe(4);
  });

  test('daemon is killed: its workers end', async () => {
    const daemon = await start();
    const workers = workersOf(daemon);
    const socket = connectTo(daemon.addresses.line[0]);
    await once(socket, 'connect');
    socket.on('error', () => {});
    await daemon.stop('SIGKILL');
    await waitUntil(() => workers.every((pid) => !isRunning(pid)));
    socket.destroy();
  });
});

describe('workers: configuration', () => {
  test('reload: other limits apply, another number of workers is refused', async () => {
    const text = (burst: number, workers: number) =>
      `workers: ${workers}\nlimits: { all: { bucket: { rate: 1/d, burst: ${burst} } } }\n`;
    const config = place.file('reload.yaml', text(5, 2));
    const daemon = await fixture.start([...ALL_PORTS, '--config', config]);
    expect(workersOf(daemon)).toHaveLength(2);
    expect(await countAllowed(daemon, 'alice', 10)).toBe(5);
    place.file('reload.yaml', text(7, 2));
    expect((await get(daemon, '/reload', { method: 'POST' })).status).toBe(200);
    expect(await countAllowed(daemon, 'bob', 10)).toBe(7);
    place.file('reload.yaml', text(7, 3));
    const refused = await get(daemon, '/reload', { method: 'POST' });
    expect(refused.status).toBe(422);
    expect(refused.text).toContain('`workers` has changed: that takes a restart');
  });

  test('number of workers that is none: an error names the option', () => {
    const problemOf = (...args: readonly string[]): string => {
      try {
        execFileSync(process.execPath, ['dist/bin/sluice.js', 'serve', ...args], { stdio: 'pipe' });
        return '';
      } catch (error) {
        return String((error as { stderr: Buffer }).stderr);
      }
    };
    expect(problemOf('--workers', 'two')).toMatch(
      /--workers: .*`workers` to be a whole number.*, got "two"/,
    );
    expect(problemOf('--workers=65')).toMatch(/--workers: .*`workers`.* got 65/);
  });
});
