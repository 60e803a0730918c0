/**
 * Converts the keys of a limit in Redis when the limit gets other numbers: spent tokens stay spent.
 *
 *     SCAN ──▶ read a page of states ──▶ convert each here, as of Redis's time ──▶ write, if the state is unchanged
 *
 * A state that a check has changed meanwhile is read again. A key's expiry depends on its rule, so it is also
 * rewritten: a key that a faster rule would have refilled must not disappear under a slower one.
 *
 * Several processes change the limit, each at its turn in a deployment. The first one converts the keys and leaves a
 * marker, so the others convert nothing. During the conversion the marker shows it, and others wait.
 *
 *     begun <id of the change> <process> <time of its last page> <change>      done <change>
 *
 * If that process dies, another one continues with that id. Each converted key stores the id, in the same write, so no
 * key is converted twice. A process with a different change converts all keys again, from its own old rule.
 *
 * A window with other steps uses other keys, because a process that has not changed yet cannot read its counts. Its
 * keys are copied. Until all processes have changed, both windows count, each for the processes that use it.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import { cryptoRandom } from '../../core/random.ts';
import type { KeyConverter, Policy, State } from '../../policies/policy.ts';
import { specsOf } from '../../policies/rules.ts';
import { ScriptBatcher, type Scripts } from './batcher.ts';
import { CallDeadlines } from './call-deadlines.ts';
import type { RedisConnection } from './client.ts';

/** How long the same change by another process converts nothing. */
const MARKER_TTL_MS: Millis = 3_600_000;

/** Attempts for a key that checks keep changing; each of them wrote it by the rule of its process. */
const MAX_ATTEMPTS = 8;

/** How long after its last page of keys a converting process is considered dead. */
const STALE_MS: Millis = 15_000;

/** Interval of the check whether another process has converted the keys, and the longest wait for it. */
const POLL_MS: Millis = 100;
const MAX_WAIT_MS: Millis = 600_000;

/** Starts or continues: `new` and the id of the change; `known`: it is done; `busy`: another process converts keys. */
const BEGIN_LUA = `
local change, id, process, ttl = unpack(ARGV)
local text = redis.call('GET', KEYS[1]) or ''
if text == 'done ' .. change then return { 'known' } end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local known, by, at, what = string.match(text, '^begun (%S+) (%S+) (%S+) (.*)$')
if known and by ~= process and now - tonumber(at) < ${STALE_MS} then return { 'busy' } end
if known and what == change then id = known end
redis.call('SET', KEYS[1], 'begun ' .. id .. ' ' .. process .. ' ' .. string.format('%.0f', now) .. ' ' .. change, 'PX', ttl)
return { 'new', id }
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
  /** Returns the new name of a key, if the new rule uses other names. */
  readonly rename: ((key: string) => string) | undefined;
}

export interface Conversion {
  readonly from: Policy;
  readonly to: Policy;
  readonly convert: KeyConverter;
}

export interface ConversionScripts {
  readonly before: Scripts;
  readonly after: Scripts;
}

export interface ConversionTiming {
  readonly clock: Clock;
  readonly deadlineMs: Millis;
}

/** Converts all keys of a limit. Rejects if Redis does not reply. */
export async function convertKeys(
  { connection, pattern, markerKey, rename }: LimitKeys,
  scripts: ConversionScripts,
  conversion: Conversion,
  timing: ConversionTiming,
): Promise<void> {
  const { from, to } = conversion;
  const calls = new CallDeadlines(timing.clock, timing.deadlineMs);
  const change = JSON.stringify([specsOf(from), specsOf(to)]);
  const [newId, process] = [cryptoRandom(), cryptoRandom()].map(String);
  const begin = async (): Promise<readonly unknown[]> => {
    const words = [change, newId, process, String(MARKER_TTL_MS)];
    return calls.run(connection.run(BEGIN_LUA, [markerKey], words));
  };
  const [state, id] = await untilFree(begin, timing.clock);
  if (state === 'known') return;
  const batching = { ...timing, onAvailability() {} };
  const [reader, writer] = [rename ? scripts.before : scripts.after, scripts.after].map(
    (each) => new ScriptBatcher(connection, each, batching),
  );
  const convertOne = (key: string): Promise<void> =>
    rename
      ? copyKey([reader, key], [writer, rename(key)], conversion, String(id))
      : convertKey(writer, key, conversion, String(id));
  try {
    for await (const keys of connection.scan(pattern, (call) => calls.run(call))) {
      await Promise.all(keys.map(convertOne));
      const [now] = await begin();
      if (now === 'known') return; // another process considered this one dead and was faster
      if (now !== 'new') throw new UnavailableError('Redis', 'it was too slow');
    }
  } finally {
    reader.stop();
    writer.stop();
  }
  const done = [change, String(MARKER_TTL_MS)];
  await calls.run(connection.run(FINISH_LUA, [markerKey], done));
}

/** Waits while another process converts keys, up to the time at which it is considered dead. */
async function untilFree(
  begin: () => Promise<readonly unknown[]>,
  clock: Clock,
): Promise<readonly unknown[]> {
  const giveUpAt = clock.now() + MAX_WAIT_MS;
  for (;;) {
    const reply = await begin();
    if (reply[0] !== 'busy') return reply;
    if (clock.now() > giveUpAt)
      throw new UnavailableError('Redis', 'another process changes the limit');
    await new Promise<void>((resolve) => {
      schedule(clock, clock.now() + POLL_MS, resolve, true);
    });
  }
}

async function readState(
  batcher: ScriptBatcher,
  key: string,
): Promise<{ readonly text: string; readonly state: State; readonly at: Millis }> {
  const { value, at } = await batcher.send(key, 'l');
  return { text: String(value), state: Float64Array.from(String(value).split(' '), Number), at };
}

function converted({ to, convert }: Conversion, before: State, at: Millis): State {
  const after = new Float64Array(to.width);
  convert(after, 0, before, 0, at);
  return after;
}

async function convertKey(
  batcher: ScriptBatcher,
  key: string,
  conversion: Conversion,
  id: string,
): Promise<void> {
  for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    const { text, state, at } = await readState(batcher, key);
    const after = converted(conversion, state, at);
    if ((await batcher.send(key, `c${id} ${text} ${after.join(' ')}`)).value === 1) return;
  }
}

/** Copies a key. Where both keys exist, the one that allows less is kept. */
async function copyKey(
  [reader, key]: readonly [ScriptBatcher, string],
  [writer, newKey]: readonly [ScriptBatcher, string],
  conversion: Conversion,
  id: string,
): Promise<void> {
  const { state, at } = await readState(reader, key);
  const copy = converted(conversion, state, at);
  if ((await writer.send(newKey, `y${copy.join(' ')}`)).value === 1) return;
  const { to } = conversion;
  for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    const known = await readState(writer, newKey);
    const [left, wouldBeLeft] = [known.state, copy].map((each) =>
      to.available(each.slice(), 0, known.at),
    );
    if (left <= wouldBeLeft) return;
    const command = `c${id} ${known.text} ${copy.join(' ')}`;
    if ((await writer.send(newKey, command)).value === 1) return;
  }
}
