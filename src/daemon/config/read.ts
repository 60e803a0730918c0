/**
 * A configuration as written, read into one that can be trusted.
 *
 * Every part is read even if another one is wrong, so that all mistakes are told at once. Whatever is
 * left out has a default that makes sense on one machine: with nothing written at all, the daemon
 * listens on loopback only and has one limit, 1 call a second with a burst of 10 for every key.
 */

import { DEFAULT_MAX_KEYS, MAX_KEYS_CEILING } from '../../backends/local/table.ts';
import type { Millis } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRecord, OptionReader } from '../../core/options.ts';
import { type Pattern, readPatterns } from '../keys/pattern.ts';
import { type GroupsConfig, readGroups } from './groups.ts';
import { type HttpConfig, readHttpSection } from './http.ts';
import { type LimitConfig, readLimits } from './limits.ts';
import { formatListenAddress, type ListenAddress, readListenAddresses } from './listen.ts';
import { type PeersConfig, readPeers } from './peers.ts';
import { type PoolConfig, readPool } from './pool.ts';

export interface Bounds {
  /** Connections at once, of each surface. */
  readonly connections: number;
  /** Bytes of a tag in the line protocol, and of a key anywhere. */
  readonly key: number;
  /** Bytes of an HTTP body. */
  readonly body: number;
  /** Keys of CL.THROTTLE. */
  readonly cells: number;
  /** A client that does not read its answers for so long is let go. */
  readonly slowMs: Millis;
  /** A client that says nothing for so long is let go. */
  readonly idleMs: Millis;
  /** How long a stopping daemon waits for those who are still connected. */
  readonly drainMs: Millis;
}

export interface SnapshotConfig {
  readonly file: string;
  /** How often it is written while running; Infinity: only when stopping. */
  readonly everyMs: Millis;
  /** An older one is ignored. */
  readonly maxAgeMs: Millis;
}

export interface Config {
  readonly listen: {
    readonly line: readonly ListenAddress[];
    readonly resp: readonly ListenAddress[];
    readonly http: readonly ListenAddress[];
  };
  readonly admin: { readonly token: string | undefined };
  /** What RESP clients must AUTH with; none: nothing. */
  readonly resp: { readonly password: string | undefined };
  readonly http: HttpConfig;
  readonly bounds: Bounds;
  readonly snapshot: SnapshotConfig | undefined;
  /** With whom limits are kept together; nobody: undefined. */
  readonly peers: PeersConfig | undefined;
  /** With whom limits are divided; nobody: undefined. */
  readonly pool: PoolConfig | undefined;
  /** With which regions far away limits are shared; none: undefined. */
  readonly groups: GroupsConfig | undefined;
  readonly log: 'text' | 'json';
  readonly unmatched: 'allow' | 'deny';
  readonly allow: readonly Pattern[];
  readonly deny: readonly Pattern[];
  readonly limits: readonly LimitConfig[];
}

export const DEFAULT_ADDRESS = {
  line: '127.0.0.1:7610',
  resp: '127.0.0.1:7611',
  http: '127.0.0.1:7612',
} as const;

/** The seed of it all: one call a second in the long run, ten at once. */
const DEFAULT_LIMITS = { default: { bucket: { rate: '1/s', burst: 10 } } };

const DAY_MS: Millis = 86_400_000;

/** A secret that can be guessed protects nothing. */
const SECRET_CHARS_MIN = 16;

/** What was read, or everything that is wrong with it. */
export type ReadResult =
  | { readonly config: Config }
  | { readonly errors: readonly [ConfigError, ...ConfigError[]] };

export function readConfig(value: unknown): ReadResult {
  try {
    return { config: readSections(OptionReader.collecting('', value ?? {}, 'a configuration')) };
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return { errors: [error, ...error.additionalErrors] };
  }
}

function readSections(fields: OptionReader): Config {
  // With a mistake there is no configuration, and nobody sees what is not there.
  const attempt = <T>(read: () => T): T => fields.tryRead(read) as T;
  const has = (section: string): boolean =>
    ![undefined, false].includes(fields.get(section) as false | undefined);
  const groups = attempt(() => readGroups(fields.get('groups'), 'groups'));
  const sections = {
    ...{ hasPeers: has('peers'), hasPool: has('pool'), hasGroups: has('groups') },
    groups,
  };
  const config = {
    groups,
    peers: attempt(() => readPeers(fields.get('peers'), 'peers')),
    pool: attempt(() => readPool(fields.get('pool'), 'pool')),
    listen: attempt(() => readListenSection(fields)),
    admin: attempt(() => readSecretSection(fields, 'admin', 'token')),
    resp: attempt(() => readSecretSection(fields, 'resp', 'password')),
    http: attempt(() => readHttpSection(fields.get('http') ?? {}, 'http')),
    bounds: attempt(() => readBounds(fields)),
    snapshot: attempt(() => readSnapshotSection(fields)),
    log: fields.oneOf('log', ['text', 'json'] as const, 'text'),
    unmatched: fields.oneOf('unmatched', ['allow', 'deny'] as const, 'allow'),
    allow: attempt(() => readPatterns(fields.get('allow'), 'allow')),
    deny: attempt(() => readPatterns(fields.get('deny'), 'deny')),
    limits: attempt(() => readLimits(fields.get('limits') ?? DEFAULT_LIMITS, 'limits', sections)),
  };
  fields.finish();
  return config;
}

function readListenSection(fields: OptionReader): Config['listen'] {
  const own = OptionReader.collecting('listen', fields.get('listen') ?? {});
  const read = (surface: keyof typeof DEFAULT_ADDRESS): readonly ListenAddress[] =>
    own.tryRead(() =>
      readListenAddresses(own.get(surface) ?? DEFAULT_ADDRESS[surface], own.pathOf(surface)),
    ) ?? [];
  const listen = { line: read('line'), resp: read('resp'), http: read('http') };
  own.finish();
  requireDistinctAddresses(listen, own);
  return listen;
}

/** Somewhere at all, and nowhere twice. */
function requireDistinctAddresses(listen: Config['listen'], own: OptionReader): void {
  const seen = new Set<string>();
  for (const [surface, listens] of Object.entries(listen)) {
    for (const one of listens) {
      const place = formatListenAddress(one);
      const isPicked = one.kind === 'tcp' && one.port === 0; // another one every time
      if (!isPicked && seen.has(place)) {
        throw new ConfigError(own.pathOf(surface), 'an address that is there once', place);
      }
      seen.add(place);
    }
  }
  if (seen.size === 0) {
    throw new ConfigError(
      'listen',
      'an address for one of line, resp, http',
      'off for all of them',
    );
  }
}

/** A section with nothing but a secret in it, which is never shown. */
function readSecretSection<Name extends string>(
  fields: OptionReader,
  section: string,
  name: Name,
): { readonly [Own in Name]: string | undefined } {
  const value = fields.get(section) ?? {};
  if (!isRecord(value)) {
    throw new ConfigError(section, `an object with \`${name}\``, 'one that is not');
  }
  const own = new OptionReader(section, value);
  const secret = own.get(name);
  own.finish();
  const isSecret =
    typeof secret === 'string' &&
    secret.length >= SECRET_CHARS_MIN &&
    /^[\x21-\x7e]+$/.test(secret);
  if (secret === undefined || isSecret) return { [name]: secret } as never;
  const expected = `at least ${SECRET_CHARS_MIN} letters, digits or signs without spaces`;
  throw new ConfigError(own.pathOf(name), expected, 'one that is not');
}

function readBounds(fields: OptionReader): Bounds {
  const own = OptionReader.collecting('bounds', fields.get('bounds') ?? {});
  const upTo = (name: string, max: number, fallback: number): number =>
    own.number(name, { min: 1, max, integer: true }, fallback);
  const bounds = {
    connections: upTo('connections', 1_000_000, 10_000),
    key: upTo('key', 65_536, 4096),
    body: upTo('body', 16_777_216, 65_536),
    cells: upTo('cells', MAX_KEYS_CEILING, DEFAULT_MAX_KEYS),
    slowMs: own.duration('slow', 30_000),
    idleMs: own.duration('idle', Infinity),
    drainMs: own.duration('drain', 5_000),
  };
  own.finish();
  return bounds;
}

function readSnapshotSection(fields: OptionReader): SnapshotConfig | undefined {
  const value = fields.get('snapshot');
  if (value === undefined || value === false) return undefined;
  const own = OptionReader.collecting(
    'snapshot',
    typeof value === 'string' ? { file: value } : value,
  );
  const isFile = (file: unknown): file is string => typeof file === 'string' && file !== '';
  const snapshot = {
    file: own.required('file', isFile, "a file's name"),
    everyMs: own.duration('every', Infinity),
    maxAgeMs: own.duration('maxAge', DAY_MS),
  };
  own.finish();
  return snapshot;
}
