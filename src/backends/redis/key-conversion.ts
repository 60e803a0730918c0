/**
 * Converts the keys of a limit in Redis when the limit gets other numbers: what was spent stays spent.
 *
 *     SCAN ──▶ read a page of states ──▶ convert each here, as of Redis's time ──▶ write, if the state is unchanged
 *
 * A state that a check has changed meanwhile is read again. The expiry of a key follows from its rule, so it is written
 * anew as well: a key that a faster rule would have refilled must not vanish under a slower one.
 *
 * Several processes change the same limit, each when its turn in a deployment comes. The first one converts the keys and
 * leaves a marker; for the others they are converted. A conversion that is run twice would shift a spacing twice.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import type { KeyConverter, Policy } from '../../policies/policy.ts';
import { ScriptBatcher, type Scripts } from './batcher.ts';
import { CallDeadlines } from './call-deadlines.ts';
import type { RedisConnection } from './client.ts';

/** How long the same change by another process converts nothing. */
const MARKER_TTL_MS: Millis = 3_600_000;

/** Attempts for a key that checks keep changing; each of them wrote it by the rule of its process. */
const MAX_ATTEMPTS = 8;

const MARK_LUA = `
if redis.call('GET', KEYS[1]) == ARGV[1] then return { 'known' } end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return { 'new' }
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
  const marked = connection.run(MARK_LUA, [markerKey], [change, String(MARKER_TTL_MS)]);
  if ((await calls.run(marked))[0] === 'known') return;
  const batcher = new ScriptBatcher(connection, scripts, { ...timing, onAvailability() {} });
  try {
    for await (const keys of connection.scan(pattern, (call) => calls.run(call)))
      await Promise.all(keys.map((key) => convertKey(batcher, key, conversion)));
  } finally {
    batcher.stop();
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
