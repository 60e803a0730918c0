/**
 * Converts the keys of a limit in Redis when the limit gets other numbers: what was spent stays spent.
 *
 *     SCAN ──▶ read a page of states ──▶ convert each here, as of Redis's time ──▶ write, if the state is unchanged
 *
 * A state that a check has changed meanwhile is read again. The expiry of a key follows from its rule, so it is written
 * anew as well: a key that a faster rule would have refilled must not vanish under a slower one.
 *
 * Several processes change the same limit, each when its turn in a deployment comes. The first one converts the keys and
 * leaves a marker; for the others they are converted. While it converts, the marker says so, and others wait. It expires
 * if that process dies: then another one converts all keys again. A key that is converted twice has refilled at the old
 * rate until the second time, and a spacing is shifted twice. Without the second conversion, keys would get a fresh burst.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import { cryptoRandom } from '../../core/random.ts';
import type { KeyConverter, Policy } from '../../policies/policy.ts';
import { ScriptBatcher, type Scripts } from './batcher.ts';
import { CallDeadlines } from './call-deadlines.ts';
import type { RedisConnection } from './client.ts';

/** How long the same change by another process converts nothing. */
const MARKER_TTL_MS: Millis = 3_600_000;

/** Attempts for a key that checks keep changing; each of them wrote it by the rule of its process. */
const MAX_ATTEMPTS = 8;

/** How long after its last page of keys a process that converts is taken for dead. */
const BEGUN_TTL_MS: Millis = 15_000;

/** How often a process looks whether another one has converted the keys, and for how long at most. */
const POLL_MS: Millis = 100;
const MAX_WAIT_MS: Millis = 600_000;

/** Begins, or goes on: `new`. `known`: the change is done. `busy`: another process converts keys. */
const BEGIN_LUA = `
local text = redis.call('GET', KEYS[1]) or ''
if text == 'done ' .. ARGV[1] then return { 'known' } end
local mine = 'begun ' .. ARGV[2]
if string.sub(text, 1, 6) == 'begun ' and text ~= mine then return { 'busy' } end
redis.call('SET', KEYS[1], mine, 'PX', ARGV[3])
return { 'new' }
`;

const FINISH_LUA = `
redis.call('SET', KEYS[1], 'done ' .. ARGV[1], 'PX', ARGV[2])
return { 'done' }
`;

export interface LimitKeys {
  readonly connection: RedisConnection;
  /** A glob pattern for the names of all keys. */
  readonly pattern: string;
  /** The name of the key that holds the last change. */
  readonly markerKey: string;
}

export interface Conversion {
  readonly from: Policy;
  readonly to: Policy;
  readonly convert: KeyConverter;
}

export interface ConversionTiming {
  readonly clock: Clock;
  /** The longest time of each call. */
  readonly deadlineMs: Millis;
}

/** `scripts` are those of the new rule. Rejects if Redis does not answer. */
export async function convertKeys(
  { connection, pattern, markerKey }: LimitKeys,
  scripts: Scripts,
  conversion: Conversion,
  timing: ConversionTiming,
): Promise<void> {
  const { from, to } = conversion;
  const calls = new CallDeadlines(timing.clock, timing.deadlineMs);
  const change = JSON.stringify([from.specs, to.specs]);
  const id = String(cryptoRandom());
  const begin = async (): Promise<string> => {
    const words = [change, id, String(BEGUN_TTL_MS)];
    return String((await calls.run(connection.run(BEGIN_LUA, [markerKey], words)))[0]);
  };
  if ((await untilFree(begin, timing.clock)) === 'known') return;
  const batcher = new ScriptBatcher(connection, scripts, { ...timing, onAvailability() {} });
  try {
    for await (const keys of connection.scan(pattern, (call) => calls.run(call))) {
      await Promise.all(keys.map((key) => convertKey(batcher, key, conversion)));
      if ((await begin()) !== 'new') throw new UnavailableError('Redis', 'it was too slow');
    }
  } finally {
    batcher.stop();
  }
  const done = [change, String(MARKER_TTL_MS)];
  await calls.run(connection.run(FINISH_LUA, [markerKey], done));
}

/** Waits while another process converts keys; a process that has died stops to be in the way. */
async function untilFree(begin: () => Promise<string>, clock: Clock): Promise<string> {
  const giveUpAt = clock.now() + MAX_WAIT_MS;
  for (;;) {
    const state = await begin();
    if (state !== 'busy') return state;
    if (clock.now() > giveUpAt)
      throw new UnavailableError('Redis', 'another process changes the limit');
    await new Promise<void>((resolve) => {
      schedule(clock, clock.now() + POLL_MS, resolve, true);
    });
  }
}

async function convertKey(
  batcher: ScriptBatcher,
  key: string,
  { to, convert }: Conversion,
): Promise<void> {
  let written = '';
  for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    const { value, at } = await batcher.send(key, 'l');
    const before = Float64Array.from(String(value).split(' '), Number);
    if (before.join(' ') === written) return; // the call was repeated, and its first reply was lost
    const after = new Float64Array(to.width);
    convert(after, 0, before, 0, at);
    written = after.join(' ');
    if ((await batcher.send(key, `c${value} ${written}`)).value === 1) return;
  }
}
