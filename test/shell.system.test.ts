import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { daemonFixture } from './support/daemon.ts';
import { hasShellTools } from './support/services.ts';

const { start, place, end } = daemonFixture();

afterEach(end);

describe.skipIf(!hasShellTools())('line protocol from a shell', () => {
  const OFF = ['--resp', 'off', '--http', 'off'];
  const replyTo = (command: string, ...args: string[]): string =>
    execFileSync(command, args, {
      input: 'C\nC\n204.112.101.1\n',
      encoding: 'utf8',
      timeout: 10_000,
    });

  test('works with nc and socat, over TCP and a Unix socket', async () => {
    const socket = join(place().path, 'line.sock');
    const daemon = await start(['--line', '127.0.0.1:0', '--line', socket, '--burst', '3', ...OFF]);
    const port = String(daemon.port('line'));
    expect(replyTo('nc', '-N', '127.0.0.1', port)).toBe('OK\nOK\nOK\n');
    expect(replyTo('nc', '-N', '-U', socket)).toBe('OK\nNO\nOK\n');
    expect(replyTo('socat', '-t5', '-', `TCP:127.0.0.1:${port}`)).toBe('NO\nNO\nOK\n');
    expect(replyTo('socat', '-t5', '-', `UNIX-CONNECT:${socket}`)).toBe('NO\nNO\nNO\n');
  });
});
