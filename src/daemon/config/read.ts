/**
 * Every section is read even if another one has mistakes, so that one run reports all of them. Defaults suit one
 * machine. An empty configuration listens on loopback only. It has one limit: for every key a token bucket with a rate
 * of 1/s and a burst of 10.
 */

import type { BackendModule, BackendSection } from '../../backends/daemon-backend.ts';
import { DEFAULT_MAX_TOLERANCE_MS } from '../../backends/local/gcra-table.ts';
import { MAX_KEYS_CEILING } from '../../backends/local/table.ts';
import type { Millis } from '../../core/clock.ts';
import { described, isNonEmptyString, isString, secretSection } from '../../core/config-helpers.ts';
import { ConfigError } from '../../core/errors.ts';
import {
  formatListenAddress,
  type ListenAddress,
  readListenAddresses,
} from '../../core/listen-address.ts';
import { LOG_LEVELS, type LogSettings } from '../../core/log.ts';
import { isRecord, OptionReader } from '../../core/options.ts';
import { runAtOnce, type Steps } from '../../core/steps.ts';
import { BACKENDS } from '../backends/registry.ts';
import { ALL_IPV6_BITS, DEFAULT_IPV6_BITS } from '../keys/canonical-key.ts';
import { readPatternsInSteps } from '../keys/pattern.ts';
import { NO_PATTERNS, PatternTable } from '../keys/pattern-table.ts';
import { lineReader, type ReadLines } from '../keys/text-file.ts';
import { type HttpConfig, readHttpSection } from './http.ts';
import { type LimitConfig, readLimitsInSteps } from './limits.ts';
import { type OverloadConfig, readOverload } from './overload.ts';
import { type PlansByKey, readPlanFile } from './plans.ts';
import type { ReadLists } from './read-lists.ts';

export interface Bounds {
  /** Open connections of each protocol. */
  readonly maxConnections: number;
  /** Bytes of a key. */
  readonly maxKey: number;
  readonly maxBody: number;
  /** Keys of CL.THROTTLE; undefined: as many as fit into memory. */
  readonly maxThrottleKeys: number | undefined;
  /** The longest time that a burst of CL.THROTTLE takes to earn. */
  readonly maxThrottleMs: Millis;
  /** Time after which a client is disconnected that does not read its replies, or send a whole HTTP request. */
  readonly slowMs: Millis;
  /** Time after which a client that sends nothing is disconnected; Infinity: no bound. */
  readonly idleMs: Millis;
  /** How long a stopping daemon waits for clients that are still connected. */
  readonly drainMs: Millis;
  /** Calls that wait for a permit. */
  readonly maxWaiting: number;
  /** The longest wait that a call may request. */
  readonly maxWaitMs: Millis;
}

export interface SnapshotConfig {
  readonly file: string;
  /** Interval of writes while running; Infinity: only on stop. */
  readonly everyMs: Millis;
  /** An older one is ignored. */
  readonly maxAgeMs: Millis;
}

export interface KeysConfig {
  /** Bits of an IPv6 address that are one client: it counts as its network. */
  readonly ipv6Bits: number;
}

export interface LogConfig extends LogSettings {
  /** Interval of the lines about denied calls; Infinity: none. */
  readonly denialsMs: Millis;
  /** How many of the most denied keys a line has; 0: keys are not logged. */
  readonly denialKeys: number;
}

export interface Config {
  readonly listen: {
    readonly line: readonly ListenAddress[];
    readonly resp: readonly ListenAddress[];
    readonly http: readonly ListenAddress[];
  };
  readonly admin: { readonly token: string | undefined };
  /** The password for AUTH; undefined: RESP clients need none. */
  readonly resp: { readonly password: string | undefined };
  readonly http: HttpConfig;
  readonly bounds: Bounds;
  readonly overload: OverloadConfig;
  /** Processes that do the input and output of connections; 0: the daemon does. */
  readonly workers: number;
  readonly snapshot: SnapshotConfig | undefined;
  /** The sections of backends, by name, in the order of the registry, wrappers last. */
  readonly backends: ReadonlyMap<string, BackendSection>;
  readonly log: LogConfig;
  readonly ready: {
    /** True: not ready while the backend of a limit is unavailable. */
    readonly needsBackends: boolean;
  };
  readonly keys: KeysConfig;
  readonly unmatched: 'allow' | 'deny';
  readonly allow: PatternTable;
  readonly deny: PatternTable;
  readonly limits: readonly LimitConfig[];
  /** The plans of keys, by the file. */
  readonly planOf: PlansByKey;
}

export const DEFAULT_ADDRESS = {
  line: '127.0.0.1:7610',
  resp: '127.0.0.1:7611',
  http: '127.0.0.1:7612',
} as const;

export const DEFAULT_BOUNDS: Bounds = {
  maxConnections: 10_000,
  maxKey: 4096,
  maxBody: 65_536,
  maxThrottleKeys: undefined,
  maxThrottleMs: DEFAULT_MAX_TOLERANCE_MS,
  slowMs: 30_000,
  idleMs: 600_000,
  drainMs: 5_000,
  maxWaiting: 5_000, // half of the connections of one protocol
  maxWaitMs: 60_000,
};

/** The most that `bounds.waiting` may be: no limiter of a daemon has a smaller queue. */
export const MAX_WAITING = 1_000_000;

const MAX_WORKERS = 64;

const DEFAULT_LIMITS = { default: { bucket: { rate: '1/s', burst: 10 } } };

const DAY_MS: Millis = 86_400_000;
const DEFAULT_DENIALS_MS: Millis = 10_000;

/** Keys in a line about denied calls: a key can have thousands of characters. */
const MAX_LOGGED_KEYS = 20;

/** Shorter secrets can be guessed. */
const MIN_SECRET_CHARS = 16;

/** The listen addresses of every protocol, those of backends included. */
export const listenAddressesOf = ({
  listen,
  backends,
}: Pick<Config, 'listen' | 'backends'>): Readonly<Record<string, readonly ListenAddress[]>> => ({
  ...listen,
  ...Object.fromEntries(
    [...backends].flatMap(([name, { listener }]) => (listener ? [[name, listener.addresses]] : [])),
  ),
});

export type ReadResult =
  | { readonly config: Config }
  | { readonly errors: readonly [ConfigError, ...ConfigError[]] };

export const readConfig = (
  value: unknown,
  modules?: readonly BackendModule[],
  readLines?: ReadLines,
): ReadResult => runAtOnce(readConfigInSteps(value, modules, readLines));

export function* readConfigInSteps(
  value: unknown,
  modules: readonly BackendModule[] = BACKENDS,
  readLines: ReadLines = lineReader('.'),
  lists?: ReadLists,
): Steps<ReadResult> {
  try {
    const fields = OptionReader.collecting('', value ?? {}, 'a configuration');
    return { config: yield* readSections(fields, modules, readLines, lists) };
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return { errors: [error, ...error.additionalErrors] };
  }
}

function* readSections(
  fields: OptionReader,
  registry: readonly BackendModule[],
  readLines: ReadLines,
  lists: ReadLists | undefined,
): Steps<Config> {
  // A wrapper comes after every backend that it may wrap, wherever the registry lists it.
  const modules = [...registry].sort((a, b) => Number(!!a.wrapper) - Number(!!b.wrapper));
  // With a mistake `finish` throws, so the undefined that stands for a failed section is never seen.
  const attempt = <T>(read: () => T): T => fields.tryRead(read) as T;
  const attemptInSteps = <T>(read: Steps<T>) => fields.tryReadInSteps(read) as Steps<T>;
  const sections = readBackendSections(fields, modules);
  const context = { modules, sections, readLines, plans: fields.get('plans'), lists };
  const limits = yield* attemptInSteps(
    readLimitsInSteps(fields.get('limits') ?? DEFAULT_LIMITS, 'limits', context),
  );
  const list = function* (name: 'allow' | 'deny'): Steps<PatternTable> {
    const known = lists?.patterns(name);
    if (known || !fields.has(name)) return known ?? NO_PATTERNS;
    const patterns = yield* attemptInSteps(readPatternsInSteps(fields.get(name), name, readLines));
    return yield* PatternTable.inSteps(patterns ?? []);
  };
  fields.get('include'); // its files are merged already
  const config = {
    backends: sections as Config['backends'],
    listen: attempt(() => readListenSection(fields)),
    admin: { token: attempt(() => readSecret(fields, 'admin', 'token')) },
    resp: { password: attempt(() => readSecret(fields, 'resp', 'password')) },
    http: attempt(() => readHttpSection(fields.get('http') ?? {}, 'http')),
    bounds: attempt(() => readBounds(fields)),
    overload: attempt(() => readOverload(fields)),
    workers: fields.number('workers', { min: 0, max: MAX_WORKERS, integer: true }, 0),
    snapshot: attempt(() => readSnapshotSection(fields)),
    log: attempt(() => readLogSection(fields)),
    ready: attempt(() => readReadySection(fields)),
    keys: attempt(() => readKeysSection(fields)),
    unmatched: fields.oneOf('unmatched', ['allow', 'deny'] as const, 'allow'),
    allow: yield* list('allow'),
    deny: yield* list('deny'),
    limits,
    planOf: yield* attemptInSteps(readPlanFile(fields, readLines, limits, lists?.planOf)),
  };
  fields.finish();
  return config;
}

/** The sections that were written; one with mistakes is undefined. */
function readBackendSections(
  fields: OptionReader,
  modules: readonly BackendModule[],
): Map<string, BackendSection | undefined> {
  const sections = new Map<string, BackendSection | undefined>();
  for (const { name, readSection } of modules) {
    if (!readSection || !fields.has(name) || fields.get(name) === false) continue;
    const section = fields.tryRead(() => readSection(fields.get(name), name));
    sections.set(name, section);
  }
  return sections;
}

function readListenSection(fields: OptionReader): Config['listen'] {
  const reader = OptionReader.collecting('listen', fields.get('listen') ?? {});
  const read = (protocol: keyof typeof DEFAULT_ADDRESS): readonly ListenAddress[] =>
    reader.tryRead(() =>
      readListenAddresses(
        reader.get(protocol) ?? DEFAULT_ADDRESS[protocol],
        reader.pathOf(protocol),
      ),
    ) ?? [];
  const listen = { line: read('line'), resp: read('resp'), http: read('http') };
  reader.finish();
  requireDistinctAddresses(listen, reader);
  return listen;
}

/** At least one address, and none twice. */
function requireDistinctAddresses(listen: Config['listen'], reader: OptionReader): void {
  const seen = new Set<string>();
  for (const [protocol, addresses] of Object.entries(listen)) {
    for (const address of addresses) {
      const text = formatListenAddress(address);
      const isEphemeral = address.kind === 'tcp' && address.port === 0; // another port every time
      if (!isEphemeral && seen.has(text)) {
        throw new ConfigError(reader.pathOf(protocol), 'an address that is listed once', text);
      }
      seen.add(text);
    }
  }
  if (seen.size === 0) {
    const expected = 'an address for one of line, resp, http';
    throw new ConfigError('listen', expected, described('off for all of them'));
  }
}

/** Reads a section with one field, a secret. No message shows it. */
function readSecret(fields: OptionReader, section: string, name: string): string | undefined {
  const reader = secretSection(section, fields.get(section) ?? {}, `an object with \`${name}\``);
  const secret = reader.get(name);
  reader.finish();
  if (secret === undefined) return undefined;
  const isPrintable = isString(secret) && /^[\x21-\x7e]+$/.test(secret);
  if (isPrintable && secret.length >= MIN_SECRET_CHARS) return secret;
  const expected = `at least ${MIN_SECRET_CHARS} printable ASCII characters without spaces`;
  throw new ConfigError(reader.pathOf(name), expected, described('another value'));
}

function readBounds(fields: OptionReader): Bounds {
  const reader = OptionReader.collecting('bounds', fields.get('bounds') ?? {});
  const upTo = (name: string, max: number, fallback: number): number =>
    reader.number(name, { min: 1, max, integer: true }, fallback);
  const bounds = {
    maxConnections: upTo('connections', 1_000_000, DEFAULT_BOUNDS.maxConnections),
    maxKey: upTo('key', 65_536, DEFAULT_BOUNDS.maxKey),
    maxBody: upTo('body', 16_777_216, DEFAULT_BOUNDS.maxBody),
    maxThrottleKeys: reader.has('throttleKeys')
      ? upTo('throttleKeys', MAX_KEYS_CEILING, 1)
      : undefined,
    maxThrottleMs: reader.duration('throttleTolerance', DEFAULT_BOUNDS.maxThrottleMs),
    slowMs: reader.duration('slow', DEFAULT_BOUNDS.slowMs),
    idleMs: reader.durationOrInfinity('idle', DEFAULT_BOUNDS.idleMs),
    drainMs: reader.duration('drain', DEFAULT_BOUNDS.drainMs),
    maxWaiting: reader.number(
      'waiting',
      { min: 0, max: MAX_WAITING, integer: true },
      DEFAULT_BOUNDS.maxWaiting,
    ),
    maxWaitMs: reader.duration('wait', DEFAULT_BOUNDS.maxWaitMs),
  };
  reader.finish();
  return bounds;
}

function readKeysSection(fields: OptionReader): KeysConfig {
  const reader = OptionReader.collecting('keys', fields.get('keys') ?? {});
  const range = { min: 32, max: ALL_IPV6_BITS, integer: true };
  const keys = { ipv6Bits: reader.number('ipv6', range, DEFAULT_IPV6_BITS) };
  reader.finish();
  return keys;
}

function readReadySection(fields: OptionReader): Config['ready'] {
  const reader = OptionReader.collecting('ready', fields.get('ready') ?? {});
  const backends = reader.oneOf('backends', ['ignore', 'require'] as const, 'ignore');
  reader.finish();
  return { needsBackends: backends === 'require' };
}

/** A string is short for its format. */
function readLogSection(fields: OptionReader): LogConfig {
  const value = fields.get('log') ?? {};
  const reader = OptionReader.collecting('log', isString(value) ? { format: value } : value);
  const format = reader.oneOf('format', ['text', 'json'] as const, 'text');
  const level = reader.oneOf('level', LOG_LEVELS, 'info');
  const denials = reader.tryRead(() => readDenialLog(reader.get('denials') ?? {}));
  reader.finish();
  return { format, level, denialsMs: Infinity, denialKeys: 0, ...denials };
}

/** A duration is short for its interval. */
function readDenialLog(value: unknown): Pick<LogConfig, 'denialsMs' | 'denialKeys'> {
  const isOff = value === false || value === 'off';
  if (!isRecord(value)) {
    const every = new OptionReader('log', { denials: value });
    const denialsMs = isOff ? Infinity : every.durationOrInfinity('denials', DEFAULT_DENIALS_MS);
    return { denialsMs, denialKeys: 0 };
  }
  const reader = OptionReader.collecting('log.denials', value);
  const log = {
    denialsMs: reader.durationOrInfinity('every', DEFAULT_DENIALS_MS),
    denialKeys: reader.number('keys', { min: 0, max: MAX_LOGGED_KEYS, integer: true }, 0),
  };
  reader.finish();
  return log;
}

function readSnapshotSection(fields: OptionReader): SnapshotConfig | undefined {
  const value = fields.get('snapshot');
  if (value === undefined || value === false) return undefined;
  const written = typeof value === 'string' ? { file: value } : value;
  const reader = OptionReader.collecting('snapshot', written);
  const snapshot = {
    file: reader.required('file', isNonEmptyString, 'a file name'),
    everyMs: reader.duration('every', Infinity),
    maxAgeMs: reader.duration('maxAge', DAY_MS),
  };
  reader.finish();
  return snapshot;
}
