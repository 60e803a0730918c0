import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';

const run = (args: readonly string[], input = '') =>
  spawnSync(process.execPath, ['dist/bin/sluice.js', ...args], { input, encoding: 'utf8' });

describe('sluice', () => {
  test('is the executable that package.json installs', () => {
    const { bin, exports } = JSON.parse(readFileSync('package.json', 'utf8'));
    expect(bin.sluice).toBe('dist/bin/sluice.js');
    for (const entry of Object.values(exports) as (string | Record<string, string>)[]) {
      const files = typeof entry === 'string' ? [entry] : Object.values(entry);
      for (const file of files) expect(readFileSync(file, 'utf8')).not.toBe('');
    }
  });

  test('--version prints the version', () => {
    const { version } = JSON.parse(readFileSync('package.json', 'utf8'));
    expect(run(['--version']).stdout).toBe(`${version}\n`);
  });

  test('without arguments prints the commands, exit code 2', () => {
    const { status, stdout } = run([]);
    expect(status).toBe(2);
    expect(stdout).toMatch(/usage: sluice <command>[\s\S]*trace[\s\S]*simulate/);
  });

  test.each([
    ['--help'],
    ['simulate', '--help'],
    ['trace', '--help'],
    ['replay', '--help'],
    ['plan', '--help'],
    ['simulate', 'adaptive', '--help'],
    ['simulate', 'tchannel', '--help'],
    ['simulate', 'ramp', '--help'],
    ['simulate', 'peers', '--help'],
    ['simulate', 'sweep', '--help'],
  ])('%s %s prints help in at most 80 columns', (...args) => {
    const { status, stdout, stderr } = run(args);
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(stdout).toContain('usage: sluice');
    for (const line of stdout.split('\n')) expect(line.length).toBeLessThanOrEqual(80);
  });

  test.each([
    [
      ['fly'],
      /^sluice: expected one of serve, check, report, explain, top, why, config, reload, peers, pool, groups, ban, unban, override, reset, controls, trace, replay, plan, simulate, got "fly"; see sluice --help\n$/,
    ],
    [['simulate', 'fly'], /^sluice simulate: expected one of .*, got "fly"/],
    [['trace'], /^sluice trace: expected one FILE\.json/],
    [['trace', '--jsno'], /^sluice trace: Unknown option '--jsno'; see --help\n$/],
    [['simulate', 'adaptive', 'nowhere.json'], /cannot read nowhere\.json/],
  ])('%j is a usage error in one line, exit code 2', (args, message) => {
    const { status, stdout, stderr } = run(args);
    expect(stderr).toMatch(message);
    expect({ status, stdout }).toEqual({ status: 2, stdout: '' });
  });

  test('trace: reads standard input', () => {
    const trace = { limit: { bucket: { rate: 1 } }, calls: [{ at: 0, check: 1 }] };
    const { status, stdout } = run(['trace', '-', '--json'], JSON.stringify(trace));
    expect(status).toBe(0);
    expect(JSON.parse(stdout)).toEqual({ at: 0, verdict: 'allow', granted: 1, remaining: 0 });
  });

  test.each([
    ['plain', (text: string) => Buffer.from(text)],
    ['gzip', (text: string) => gzipSync(text)],
  ])('replay: reads standard input, %s', (_, encode) => {
    const line = '{"ts":1791633600.5,"ip":"a"}\n';
    const args = ['dist/bin/sluice.js', 'replay', '-', '--limit', 'bucket 1/h burst 2', '--json'];
    const input = encode(line.repeat(50_000));
    const { status, stdout, stderr } = spawnSync(process.execPath, args, { input });
    expect({ status, stderr: stderr.toString() }).toEqual({ status: 0, stderr: '' });
    expect(JSON.parse(stdout.toString())).toMatchObject({ calls: 50_000, denied: 49_998 });
  });

  test('replay: a usage error does not wait for the end of standard input', async () => {
    const args = ['dist/bin/sluice.js', 'replay', '-', '--limit', 'bucket 1/s', '--key', 'nothing'];
    const child = spawn(process.execPath, args, { stdio: ['pipe', 'ignore', 'ignore'] });
    child.stdin.write('10.0.0.1 - - [10/Oct/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 1\n'); // and does not end
    const [code] = await once(child, 'exit', { signal: AbortSignal.timeout(20_000) });
    child.stdin.destroy();
    expect(code).toBe(2);
  });

  test.each(['steady', 'flappy'])(
    'simulate tchannel: prints the published output of %s byte for byte',
    (shape) => {
      const { status, stdout } = run(['simulate', 'tchannel', shape]);
      expect(stdout).toBe(readFileSync(`test/vectors/tchannel-${shape}.txt`, 'utf8'));
      expect(status).toBe(0);
    },
  );

  test('simulate adaptive: runs the published cases, one line of JSON each', () => {
    const { status, stdout } = run([
      'simulate',
      'adaptive',
      'test/vectors/arc-cases.json',
      '--json',
    ]);
    const lines = stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(status).toBe(0);
    expect(lines.length).toBe(24);
    expect(lines[0]).toEqual({
      suite: 'per-attempt',
      case: 'constant-link',
      ok: true,
      held: 12,
      of: 12,
      missed: [],
    });
  });

  test('simulate adaptive: names a missed range, exit code 1', () => {
    const file = JSON.parse(readFileSync('test/vectors/arc-cases.json', 'utf8'));
    file.suites[0].cases[0].expect['server.in_flight.max'] = [1, 2];
    const args = ['simulate', 'adaptive', '-', '--case', 'constant-link'];
    const { status, stdout } = run(args, JSON.stringify(file));
    expect(status).toBe(1);
    expect(stdout).toMatch(/MISS per-attempt \/ constant-link +11 of 12/);
    expect(stdout).toMatch(/server\.in_flight\.max: expected 1 to 2, got 3[01]/);
  });

  test('exits quietly when its reader closes the pipe', () => {
    const shell = 'set -o pipefail; node dist/bin/sluice.js simulate tchannel steady | head -n 1';
    const { status, stdout, stderr } = spawnSync('bash', ['-c', shell], { encoding: 'utf8' });
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(stdout).toBe('started with recover_rate: 3\n');
  });
});
