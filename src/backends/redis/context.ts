import { type Clock, type Millis, timersEndWithRequest } from '../../core/clock.ts';
import type { OnUnavailable } from '../../core/decision.ts';
import { ConfigError, UnavailableError } from '../../core/errors.ts';
import { MAX_AMOUNT } from '../../core/options.ts';
import type { KeyConverter, Policy } from '../../policies/policy.ts';
import { layoutOf, namesOfRules } from '../../policies/rules.ts';
import { type Fallback, LocalFallback } from '../local/local-fallback.ts';
import type { RemoteBackendContext } from '../remote-backend.ts';
import { decideUnavailable, limitIdOf } from '../remote-limit.ts';
import { ScriptBatcher, type Scripts } from './batcher.ts';
import { escapeGlob, type RedisConnection, type Subscriber } from './client.ts';
import {
  causeOfOutage,
  listenForErrors,
  warnOfLateReplies,
  warnOfOutage,
} from './client-errors.ts';
import { FairQueue, type FairQueueOptions, type SendCommand } from './fair-queue.ts';
import { convertKeys } from './key-conversion.ts';
import type { FleetOrder } from './lua-fair-order.ts';
import { grantsAhead } from './lua-fair-queue.ts';
import { JOINT_SCRIPT } from './lua-joint.ts';
import { sha256Base64Url } from './sha256.ts';
import { UnsentCommands } from './unsent-commands.ts';

export const ON_UNAVAILABLE_VALUES: readonly OnUnavailable[] = ['allow', 'deny', 'local'];

/** The options of `redis()`, validated and with defaults. */
export interface RedisConfig {
  readonly connection: RedisConnection;
  readonly prefix: string;
  readonly deadlineMs: Millis;
  readonly onUnavailable: OnUnavailable;
  readonly processes: number;
  /** Receives turn messages; only with `fairQueue`. */
  readonly subscriber: Subscriber | undefined;
}

export interface RedisContext {
  readonly connection: RedisConnection;
  readonly batcher: ScriptBatcher;
  /** Names of rules, by the number in a refusal. */
  readonly ruleNames: readonly string[];
  readonly redisKeyOf: (key: string) => string;
  /** Sends a command for a key. Rejects with an UnavailableError if there is no reply in time. */
  readonly send: SendCommand;
  /** Converts an instant of this process's clock to Redis's clock; NaN before the first reply. */
  readonly toRedisTime: (key: string, at: Millis) => Millis;
  /** Sends commands that must reach Redis, if necessary after an outage. */
  readonly unsent: UnsentCommands;
  readonly fallback: Fallback;
  readonly fairQueue: FairQueue | undefined;
  /**
   * Changes the numbers of the limit: its keys in Redis are converted, unless the state does not depend on them, then
   * calls run the new scripts. Rejects if Redis is unavailable; nothing has changed then.
   */
  change(policy: Policy, scripts: Scripts, convert: KeyConverter | undefined): Promise<void>;
  /** Sends the remaining commands, then stops. */
  close(): Promise<void>;
}

export const fleetOrderOf = ({ order }: Pick<RemoteBackendContext, 'order'>): FleetOrder =>
  order === 'fair' ? 'fair' : 'fifo';

/** The scripts of a backend, the lease tracking of its fair queue, and its own fallback, if any. */
export type BackendScripts = Scripts &
  Pick<FairQueueOptions, 'trackLease'> & { readonly fallback?: Fallback };

export function createRedisContext(
  policy: Policy,
  context: RemoteBackendContext,
  config: RedisConfig,
  scripts: BackendScripts,
): RedisContext {
  const { clock, onAvailability } = context;
  const { connection, deadlineMs, subscriber } = config;
  const onChange = (isAvailable: boolean, error: unknown): void => {
    const why = isAvailable ? undefined : causeOfOutage(connection.client, error);
    if (isAvailable) {
      unsent.resend();
      fallback.reconcile(); // before waiting calls check
    } else warnOfOutage(connection.client, config.onUnavailable, why, context.hasListeners?.());
    onAvailability(isAvailable, why);
    if (isAvailable) fairQueue?.pollNow();
  };
  const onLateReplies = (rttMs: Millis): void => {
    if (!context.hasListeners?.()) warnOfLateReplies(config.onUnavailable, deadlineMs, rttMs);
  };
  // A local fallback may overshoot, so a busy host is no outage. On Workers each call has one timer, for its deadline.
  const isPatient = config.onUnavailable === 'local' && !timersEndWithRequest;
  const batching = { clock, deadlineMs, isPatient, onAvailability: onChange, onLateReplies };
  const batcher = new ScriptBatcher(connection, { ...scripts, joint: JOINT_SCRIPT }, batching);
  let names = nameKeys(config.prefix, context, policy);
  const redisKeyOf = (key: string): string => names.keyOf(key);
  const send: SendCommand = (key, command) => batcher.send(redisKeyOf(key), command);
  const toRedisTime = (key: string, at: Millis): Millis => batcher.toRedisTime(redisKeyOf(key), at);
  const unsent = new UnsentCommands(send, clock);
  const isByCalendar = policy.rules.some(({ spec }) => spec?.zone !== undefined);
  const own = batcher.clock;
  const fallbackClock = isByCalendar ? redisClock(own, (at) => toRedisTime('', at)) : own;
  const onItsClock = { ...context, clock: fallbackClock };
  const inner = scripts.fallback ?? createFallback(policy, onItsClock, config, send);
  const fallback: Fallback = {
    check: (...call) => (batcher.isClosed ? decideUnavailable('deny') : inner.check(...call)),
    observe: inner.observe.bind(inner),
    report: (key, report, count) => inner.report?.(key, report, count),
    reconcile: inner.reconcile.bind(inner),
    change: (next) => inner.change?.(next),
    forget: (key) => inner.forget?.(key),
    undo: inner.undo.bind(inner),
  };
  const ruleNames = namesOfRules(policy);
  const { trackLease } = scripts;
  const fixed = { grantsAhead: grantsAhead(policy), order: fleetOrderOf(context) };
  const fairQueue =
    subscriber &&
    new FairQueue({
      ...context,
      ...fixed,
      send,
      rtt: batcher.rtt,
      toRedisTime,
      unsent,
      fallback,
      ruleNames,
      subscriber,
      trackLease,
    });
  let current = policy;
  let before: Scripts = scripts;
  const change: RedisContext['change'] = async (next, nextScripts, convert) => {
    if (convert && !batcher.isAvailable) throw new UnavailableError('Redis');
    const nextNames = nameKeys(config.prefix, context, next);
    const isRenamed = nextNames.end !== names.end;
    const rename = (key: string): string => key.slice(0, -names.end.length) + nextNames.end;
    const keys = { connection, ...names, rename: isRenamed ? rename : undefined };
    const timing = { clock, deadlineMs: Math.max(deadlineMs, MIN_CONVERSION_DEADLINE_MS) };
    const both = { before, after: nextScripts };
    if (convert) await convertKeys(keys, both, { from: current, to: next, convert }, timing);
    batcher.useScripts({ ...nextScripts, joint: JOINT_SCRIPT });
    names = nextNames;
    before = nextScripts;
    fallback.change?.(next);
    current = next;
    fairQueue?.pollNow();
  };
  const stopListening = listenForErrors(connection.client);
  const close = async (): Promise<void> => {
    await unsent.stop();
    batcher.stop();
    stopListening();
  };
  const named = { connection, redisKeyOf, ruleNames };
  return { ...named, batcher, send, toRedisTime, unsent, fallback, fairQueue, change, close };
}

/** The most numbers per key: a script unpacks all of them at once, and Lua limits that to 8,000. */
const MAX_NUMBERS = 4000;

/** @throws {ConfigError} for a rule with more numbers than a script can read. */
export function requireWidth({ width }: Policy): void {
  if (width <= MAX_NUMBERS) return;
  const expected = `windows of fewer \`steps\`: at most ${MAX_NUMBERS} numbers for each key in Redis`;
  throw new ConfigError('limit', expected, width);
}

/** Converting a page of keys takes longer than a check, and no caller waits for it. */
const MIN_CONVERSION_DEADLINE_MS: Millis = 5000;

/**
 * Longer keys are replaced by their digest. The keys of a batch travel in one call, which would miss its deadline with
 * long keys, so a client could cause apparent outages. Redis also keeps the names in memory.
 */
const MAX_KEY_CHARS = 512;

/**
 * `prefix:{limit:key}:kind`. The braces are a hash tag: all data of a key is in one cluster slot. The kind is part of
 * the name because limits of different kinds cannot read each other's state.
 *
 * A long key is `prefix:{limit#digest}:kind`. No other key has this name: its braces contain no colon.
 */
function nameKeys(prefix: string, context: RemoteBackendContext, policy: Policy) {
  // The id must end unambiguously: "a:b" and "c" differ from "a" and "b:c". Empty braces are no hash tag.
  const id = limitIdOf(context, policy).replace(/[%:{}]/g, encodeURIComponent);
  const start = `${prefix}:{${id}`;
  const end = `}:${layoutOf(policy)}`;
  return {
    end,
    keyOf: (key: string): string =>
      key.length <= MAX_KEY_CHARS
        ? `${start}:${key}${end}`
        : `${start}#${sha256Base64Url(key)}${end}`,
    /** Matches the names of all keys. */
    pattern: `${escapeGlob(start)}[:#]*${escapeGlob(end)}`,
    /** Stores the last change of the limit's numbers; no key has this name. */
    markerKey: `${start}${end}:changed`,
  };
}

/** The estimated clock of Redis: calendar periods must be equal there and here. */
const redisClock = (clock: Clock, toRedisTime: (at: Millis) => Millis): Clock => ({
  now() {
    const now = clock.now();
    const there = toRedisTime(now);
    return Number.isNaN(there) ? now : there;
  },
});

function createFallback(
  policy: Policy,
  context: RemoteBackendContext,
  { onUnavailable, processes }: RedisConfig,
  send: SendCommand,
): Fallback {
  const lower = (key: string, left: number) => send(key, `t${MAX_AMOUNT} ${left}`);
  if (onUnavailable === 'local') return new LocalFallback(policy, context, processes, lower);
  const nothing = (): void => {};
  const check = () => decideUnavailable(onUnavailable);
  return { check, observe: nothing, reconcile: nothing, undo: nothing };
}
