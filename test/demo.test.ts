/** The built demo, at three times its speed: its story holds, and it leaves nobody behind. */

import { spawn } from 'node:child_process';
import { describe, expect, test } from 'vitest';

/** It takes a quarter of it on a machine with nothing else to do. */
const MAX_PLAY_MS = 60_000;

/** Starts it as a pipe sees it. */
function startDemo() {
  const child = spawn(process.execPath, ['demo/run.mjs', '--fast'], {
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: MAX_PLAY_MS,
  });
  const texts = { out: '', err: '' };
  child.stdout.on('data', (chunk) => {
    texts.out += chunk;
  });
  child.stderr.on('data', (chunk) => {
    texts.err += chunk;
  });
  const code = new Promise<number | null>((resolve) => child.once('close', resolve));
  const says = (words: string): Promise<void> =>
    new Promise((said) => {
      child.stdout.on('data', () => texts.out.includes(words) && said());
    });
  return { child, texts, code, says };
}

/** Those of its daemons that are still there. */
function leftBehind(out: string): number[] {
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
    'plays to its end, and what it promises holds',
    async () => {
      const { texts, code } = startDemo();
      expect([await code, texts.err]).toEqual([0, '']);
      const { out } = texts;
      expect(out).not.toContain('\x1b');
      for (const line of [
        /^ +0 s {2}the three have met/m,
        /s {2}mallory begins: 180 calls a second/,
        /s {2}north is killed/,
        /s {2}north asked the others first: its first answer is that mallory (owes|has) \d+/,
        /s {2}west goes on/,
        /^yes {2}alice, bob and carol asked \d+ times; 0 denied$/m,
      ]) {
        expect(out).toMatch(line);
      }
      const [, got, bucket] = /got (\d+); one bucket gives (\d+)/.exec(out) ?? [];
      expect(Number(bucket)).toBeGreaterThan(300);
      expect(Number(got)).toBeLessThanOrEqual(1.05 * Number(bucket));
      expect(out.match(/^ {12}ok {2}no left.*bucket$/gm)).toHaveLength(9);
      expect(leftBehind(out)).toEqual([]);
    },
    MAX_PLAY_MS,
  );

  test(
    'ends its daemons when it is interrupted, also one that is frozen',
    async () => {
      const { child, texts, code, says } = startDemo();
      await says('west is frozen');
      child.kill('SIGINT');
      expect(await code).toBe(130);
      expect(leftBehind(texts.out)).toEqual([]);
    },
    MAX_PLAY_MS,
  );
});
