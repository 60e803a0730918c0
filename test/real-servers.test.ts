/**
 * The adaptive and the busy limit against real servers on loopback, on real time: bench/real-servers/ plays, this
 * file says what must hold even on a machine that is busy with other things.
 */

import { beforeAll, describe, expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';

/** Each scenario ends by itself long before; this is for what nobody thought of. */
const MAX_PLAY_MS = 90_000;

interface Played {
  readonly facts: Readonly<Record<string, Readonly<Record<string, number | boolean>>>>;
}

let facts: Played['facts'];

beforeAll(async () => {
  ({ facts } = await runBench<Played>(MAX_PLAY_MS, 'live/run.mjs'));
}, MAX_PLAY_MS);

describe('an adaptive limit, live', () => {
  test('climbs to the maximum while all is well, and stays', () => {
    expect(facts.climb).toMatchObject({ reached: true, errors: 0 });
    expect(Number(facts.climb.after)).toBeGreaterThanOrEqual(0.75 * Number(facts.climb.max));
  });

  test('falls to one when the server falls silent, and rises when it answers again', () => {
    expect(facts.silence).toMatchObject({ fell: true, stayed: true, rose: true });
    expect(facts.silence.before).toBeGreaterThan(4);
  });

  test('backs off when answers get slower and slower', () => {
    const { before, after } = facts.slowing;
    expect(before).toBeGreaterThan(4);
    expect(after).toBeLessThanOrEqual(0.75 * Number(before)); // a quarter of it, when nothing else runs
    expect(facts.slowing.errors).toBe(0);
  });

  test('delivers nine tenths of what a hard quota allows, and is seldom refused', () => {
    expect(facts.quota.delivered).toBeGreaterThanOrEqual(0.9);
    expect(facts.quota.refused).toBeLessThanOrEqual(0.2);
  });

  test('lets a flood through without more in flight than the limit, and loses nothing', () => {
    const { events, delivered, errors, isOver } = facts.flood;
    expect({ delivered, errors, isOver }).toEqual({ delivered: events, errors: 0, isOver: false });
    expect(facts.flood.peak).toBeLessThanOrEqual(Number(facts.flood.highest));
    expect(facts.flood.atOnce).toBeLessThanOrEqual(Number(facts.flood.before));
  });
});

describe('a busy limit, live', () => {
  test('collapses within a second of the first busy reply', () => {
    expect(facts.busy.collapse).toBeLessThanOrEqual(1);
    expect(facts.busy.sentShare).toBeLessThanOrEqual(0.05);
  });

  test('does not flap while the server is busy, and keeps probing', () => {
    expect(facts.busy.probes).toBeGreaterThan(0);
    expect(facts.busy.most).toBeLessThanOrEqual(0.05 * Number(facts.busy.offered));
  });

  test('is back in full within seconds, and later after a longer spell', () => {
    expect(facts.busy.isBack).toBe(true);
    expect(facts.busy.long).toBeLessThanOrEqual(10);
    expect(facts.busy.short).toBeLessThan(Number(facts.busy.long));
  });
});
