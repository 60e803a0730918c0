import { expect, test } from 'vitest';
import { BURST, attack as flood } from '../../bench/soak/attacks/pipelining.mjs';
import { runBench } from '../support/run-bench.ts';

/** A run ends long before. */
const MAX_RUN_MS = 60_000;
const MAX_MEMORY_RUN_MS = 300_000;

interface AttackResult {
  readonly name: string;
  readonly counts: Readonly<Record<string, number>>;
  readonly failure?: string;
}

async function attack(
  name: string,
  rounds: number,
  maxMs = MAX_RUN_MS,
): Promise<AttackResult['counts']> {
  const words = ['--only', name, '--rounds', `${rounds}`, '--seed', '7'];
  const [result] = await runBench<AttackResult[]>(maxMs, 'soak/attack.mjs', ...words);
  expect({ name: result.name, failure: result.failure }).toEqual({ name, failure: undefined });
  return result.counts;
}

test('configuration attack: hostile texts are refused in bounded time and change no prototype', {
  timeout: MAX_RUN_MS,
}, async () => {
  const { texts, refused } = await attack('config', 64);
  expect({ texts, areRefused: refused > 100 }).toEqual({ texts: 128, areRefused: true });
});

test('protocol attack: the daemon lives, and other clients get exactly what their limit allows', {
  timeout: MAX_RUN_MS,
}, async () => {
  const { streams, checks, allowed } = await attack('protocols', 20);
  expect({ streams, checks }).toEqual({ streams: 240, checks: 320 });
  expect(allowed).toBeLessThanOrEqual(200);
});

test('proxy header attack: 26 sets of forged headers count for the client that sent them', {
  timeout: MAX_RUN_MS,
}, async () => {
  const { requests, allowed } = await attack('proxy-headers', 6);
  expect({ requests, allowed }).toEqual({ requests: 6 * 26 + 1, allowed: 6 * 5 });
});

test('datagram attack: noise, replays and mutations change no bucket and no membership', {
  timeout: MAX_RUN_MS,
}, async () => {
  const { checks, allowed, recorded } = await attack('datagrams', 8);
  expect({ checks, allowed }).toEqual({ checks: 64, allowed: 40 });
  expect(recorded).toBeGreaterThan(0);
});

test('memory attack: permits, half requests, queues and keys do not end a daemon with 512 MiB', {
  timeout: MAX_MEMORY_RUN_MS,
}, async () => {
  const { answered } = await attack('memory', 1, MAX_MEMORY_RUN_MS);
  expect(answered).toBe(10);
});

test('pipelining flood: another client gets its replies at once, and never above its limit', async () => {
  const names = ['line: empty keys', 'resp: SLUICE.INSPECT', 'http: GET /metrics'];
  const figures = await flood({ rounds: names.length, seed: 0, names, asks: 40 });
  expect(figures.allowed).toBe(BURST);
  expect(figures.p50Ms).toBeLessThan(50); // hundreds to thousands without a bound
});
