import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { rolldown } from 'rolldown';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  consumerFolder,
  hasRuntimes,
  RUNTIME_NAMES,
  runJest,
  runProgram,
  WORKERD,
} from './support/runtimes.ts';

const folder = consumerFolder();
afterAll(() => folder.remove());

describe.skipIf(!hasRuntimes()).each(RUNTIME_NAMES)('%s', (runtime) => {
  test('decides, waits and settles as on Node 20', { timeout: 90_000 }, async () => {
    const { printed, warnings } = await runProgram(runtime, folder.path, 'library.mjs');
    expect(printed).toEqual({
      verdicts: ['allow', 'allow', 'deny'],
      isSpaced: true,
      second: 'allow',
      denied: 'DENIED',
    });
    expect(warnings).toBe('');
  });

  test('peers gossip over UDP', { timeout: 90_000 }, async () => {
    const { printed } = await runProgram(runtime, folder.path, 'peers.mjs');
    expect(printed).toEqual({ remaining: 2 });
  });
});

describe.skipIf(!hasRuntimes())('Jest', () => {
  test('a CommonJS project requires the package', { timeout: 120_000 }, async () => {
    const result = await runJest(join(folder.path, 'commonjs'), 'jest.cjs');
    expect(result).toEqual({ numPassedTests: 3, numTotalTests: 3, messages: '' });
  });
});

describe.skipIf(!hasRuntimes()).each(['Bun', 'Deno'])('%s: sluice/web', (runtime) => {
  test('limits a client by its address, without a warning', { timeout: 90_000 }, async () => {
    const { printed, warnings } = await runProgram(runtime, folder.path, 'server.mjs');
    expect(printed).toEqual({ statuses: [200, 200, 429] });
    expect(warnings).toBe('');
  });
});

describe.skipIf(!hasRuntimes())('Cloudflare Workers (workerd)', () => {
  let workerd: ChildProcess;
  let get: (path: string, init?: RequestInit) => Promise<string>;

  beforeAll(async () => {
    const bundled = await rolldown({
      input: join(folder.path, 'worker.mjs'),
      platform: 'browser',
      logLevel: 'silent',
    });
    await bundled.write({ file: join(folder.path, 'bundle.mjs'), format: 'esm' });
    await bundled.close();
    workerd = spawn(WORKERD, ['serve', 'workerd.capnp', '--control-fd=3'], {
      cwd: folder.path,
      stdio: ['ignore', 'ignore', 'ignore', 'pipe'],
    });
    const port = await listeningPort(workerd);
    get = async (path, init) => {
      const response = await fetch(`http://127.0.0.1:${port}${path}`, init);
      const body = await response.text();
      return response.ok ? body : String(response.status);
    };
  }, 60_000);
  afterAll(() => void workerd?.kill());

  test('sluice/web limits a handler and passes its bindings on', async () => {
    expect([await get('/'), await get('/'), await get('/')]).toEqual(['served', 'served', '429']);
  });

  test('requests that wait at once are all served, each by its own timer', async () => {
    const all = Array.from({ length: 6 }, () => get('/spaced'));
    expect(await Promise.all(all)).toEqual(Array(6).fill('allow'));
  });

  test('a waiting request that disconnects does not stop those behind it', async () => {
    const client = new AbortController();
    const first = get('/hold?ms=300');
    await get('/spaced'); // the first is under way
    const second = get('/hold?ms=1', { signal: client.signal }).catch(() => 'gone');
    await get('/spaced');
    const third = get('/hold?ms=1');
    await get('/spaced');
    client.abort();
    expect(await Promise.all([first, second, third])).toEqual(['allow', 'gone', 'allow']);
  });

  test('the permit of a request that ended without settling expires', async () => {
    expect(await get('/leak')).toBe('allow');
    expect(await get('/hold?ms=1')).toBe('allow'); // after the permitTimeout of a second
  });
});

/** The port that workerd reports on its control channel. */
function listeningPort(workerd: ChildProcess): Promise<number> {
  return new Promise((found, fail) => {
    workerd.once('exit', (code) => fail(new Error(`workerd ended with code ${code}`)));
    let text = '';
    (workerd.stdio[3] as Readable).on('data', (bytes) => {
      text += bytes;
      const [, port] = /"event":"listen".*"port":(\d+)/.exec(text) ?? [];
      if (port) found(Number(port));
    });
  });
}
