/** The daemon as its operator meets it: full disks, files that vanish, addresses that change, things that are missing. */

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { openSync } from 'node:fs';
import { afterEach, describe, expect, test } from 'vitest';
import { converse, until } from './support/daemon.ts';

const children: ChildProcess[] = [];

afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
});

const EPHEMERAL = ['--line', '127.0.0.1:0', '--resp', 'off', '--http', '127.0.0.1:0'];

describe('a log that nobody takes', () => {
  /** A daemon whose standard error goes elsewhere. */
  async function serveInto(log: 'pipe' | number) {
    const child = spawn(process.execPath, ['dist/cli/main.js', 'serve', ...EPHEMERAL], {
      stdio: ['ignore', 'pipe', log],
    });
    children.push(child);
    let out = '';
    child.stdout?.on('data', (chunk) => {
      out += chunk;
    });
    await until(() => out.includes('ready\n'));
    const [, at = ''] = / line +(\S+)/.exec(out) ?? [];
    const [, http = ''] = / http +(\S+)/.exec(out) ?? [];
    const reload = () => fetch(`http://${http}/reload`, { method: 'POST' });
    return { child, at, reload };
  }

  test('for want of room does not end the daemon', async () => {
    const { child, at, reload } = await serveInto(openSync('/dev/full', 'w'));
    expect((await reload()).status).toBe(200);
    expect(await converse(at, 'a\n')).toBe('OK\n');
    child.kill('SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
  });

  test('for want of a reader does not either', async () => {
    const { child, at, reload } = await serveInto('pipe');
    child.stderr?.destroy();
    expect((await reload()).status).toBe(200);
    expect((await reload()).status).toBe(200);
    expect(await converse(at, 'a\n')).toBe('OK\n');
    child.kill('SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
  });

  test('for want of reading keeps nobody waiting', async () => {
    const { child, at, reload } = await serveInto('pipe');
    child.stderr?.pause();
    for (let n = 0; n < 3000; n += 100) {
      await Promise.all(Array.from({ length: 100 }, reload)); // 3000 lines are more than a pipe holds
    }
    expect(await converse(at, 'a\n')).toBe('OK\n');
  });
});
