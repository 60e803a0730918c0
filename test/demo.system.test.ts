import { spawn } from 'node:child_process';
import { describe, expect, test } from 'vitest';

/** Four times the duration on an idle machine. */
const MAX_RUN_MS = 60_000;

/** Starts the demo with pipes instead of a terminal. */
function startDemo() {
  const child = spawn(process.execPath, ['demo/run.mjs', '--fast'], {
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: MAX_RUN_MS,
  });
  const texts = { out: '', err: '' };
  child.stdout.on('data', (chunk) => {
    texts.out += chunk;
  });
  child.stderr.on('data', (chunk) => {
    texts.err += chunk;
  });
  const code = new Promise<number | null>((resolve) => child.once('close', resolve));
  const prints = (words: string): Promise<void> =>
    new Promise((resolve) => {
      child.stdout.on('data', () => texts.out.includes(words) && resolve());
    });
  return { child, texts, code, prints };
}

/** Daemons that still run. */
function runningDaemons(out: string): number[] {
  const pids = [...out.matchAll(/ process (\d+)/g)].map(([, pid]) => Number(pid));
  expect(pids.length).toBe(4);
  return pids.filter(isRunning);
}

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

describe('npm run demo', () => {
  test(
    'runs to its end, and all its checks hold',
    async () => {
      const { texts, code } = startDemo();
      expect([await code, texts.err], texts.out).toEqual([0, '']);
      const { out } = texts;
      expect(out).not.toContain('\x1b');
      for (const line of [
        /^ +\d+ s {2}the daemons have joined/m,
        /s {2}watch it in a browser: http:\/\/127\.0\.0\.1:\d+\/page$/m,
        /s {2}mallory starts: 180 calls\/s/,
        /s {2}north is killed/,
        /s {2}north has the state of its peers: mallory (owes|has) \d+/,
        /s {2}west continues/,
        /^yes {2}alice, bob and carol: \d+ calls, 0 denied$/m,
      ]) {
        expect(out).toMatch(line);
      }
      const [, got, bucket] = /(\d+) allowed; one bucket allows (\d+)/.exec(out) ?? [];
      expect(Number(bucket)).toBeGreaterThan(300);
      expect(Number(got)).toBeLessThanOrEqual(1.05 * Number(bucket));
      expect(out.match(/^ {12}ok {2}no left.*bucket$/gm)).toHaveLength(9);
      expect(runningDaemons(out)).toEqual([]);
    },
    MAX_RUN_MS,
  );

  test(
    'stops its daemons when it is interrupted, including a frozen one',
    async () => {
      const { child, texts, code, prints } = startDemo();
      await prints('west is frozen');
      child.kill('SIGINT');
      expect(await code).toBe(130);
      expect(runningDaemons(texts.out)).toEqual([]);
    },
    MAX_RUN_MS,
  );
});
