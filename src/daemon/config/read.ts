/**
 * A configuration as written, read into one that can be trusted.
 *
 * Every part is read even if another one is wrong, so that all mistakes are told at once. Whatever is
 * left out has a default that makes sense on one machine: with nothing written at all, the daemon
 * listens on loopback only and has one limit, 1 call a second with a burst of 10 for every key.
 */

import { KEYS_MAX_DEFAULT, KEYS_MAX_MAX } from '../../backends/local/table.ts';
import type { Millis } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { Fields, isRecord } from '../../core/options.ts';
import { type Pattern, readPatterns } from '../keys/pattern.ts';
import { type GroupsConfig, readGroups } from './groups.ts';
import { type HttpConfig, readHttp } from './http.ts';
import { type LimitConfig, readLimits } from './limits.ts';
import { type Listen, readListens, showListen } from './listen.ts';
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
  readonly ageMsMax: Millis;
}

export interface Config {
  readonly listen: {
    readonly line: readonly Listen[];
    readonly resp: readonly Listen[];
    readonly http: readonly Listen[];
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
    return { config: readSections(Fields.patient('', value ?? {}, 'a configuration')) };
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return { errors: [error, ...error.others] };
  }
}

function readSections(fields: Fields): Config {
  // With a mistake there is no configuration, and nobody sees what is not there.
  const attempt = <T>(read: () => T): T => fields.attempt(read) as T;
  const has = (section: string): boolean =>
    ![undefined, false].includes(fields.raw(section) as false | undefined);
  const groups = attempt(() => readGroups(fields.raw('groups'), 'groups'));
  const sections = {
    ...{ hasPeers: has('peers'), hasPool: has('pool'), hasGroups: has('groups') },
    groups,
  };
  const config = {
    groups,
    peers: attempt(() => readPeers(fields.raw('peers'), 'peers')),
    pool: attempt(() => readPool(fields.raw('pool'), 'pool')),
    listen: attempt(() => readListen(fields)),
    admin: attempt(() => readSecret(fields, 'admin', 'token')),
    resp: attempt(() => readSecret(fields, 'resp', 'password')),
    http: attempt(() => readHttp(fields.raw('http') ?? {}, 'http')),
    bounds: attempt(() => readBounds(fields)),
    snapshot: attempt(() => readSnapshot(fields)),
    log: fields.oneOf('log', ['text', 'json'] as const, 'text'),
    unmatched: fields.oneOf('unmatched', ['allow', 'deny'] as const, 'allow'),
    allow: attempt(() => readPatterns(fields.raw('allow'), 'allow')),
    deny: attempt(() => readPatterns(fields.raw('deny'), 'deny')),
    limits: attempt(() => readLimits(fields.raw('limits') ?? DEFAULT_LIMITS, 'limits', sections)),
  };
  fields.done();
  return config;
}

function readListen(fields: Fields): Config['listen'] {
  const own = Fields.patient('listen', fields.raw('listen') ?? {});
  const read = (surface: keyof typeof DEFAULT_ADDRESS): readonly Listen[] =>
    own.attempt(() => readListens(own.raw(surface) ?? DEFAULT_ADDRESS[surface], own.at(surface))) ??
    [];
  const listen = { line: read('line'), resp: read('resp'), http: read('http') };
  own.done();
  requireApart(listen, own);
  return listen;
}

/** Somewhere at all, and nowhere twice. */
function requireApart(listen: Config['listen'], own: Fields): void {
  const seen = new Set<string>();
  for (const [surface, listens] of Object.entries(listen)) {
    for (const one of listens) {
      const place = showListen(one);
      const isPicked = one.kind === 'tcp' && one.port === 0; // another one every time
      if (!isPicked && seen.has(place)) {
        throw new ConfigError(own.at(surface), 'an address that is there once', place);
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
function readSecret<Name extends string>(
  fields: Fields,
  section: string,
  name: Name,
): { readonly [Own in Name]: string | undefined } {
  const value = fields.raw(section) ?? {};
  if (!isRecord(value)) {
    throw new ConfigError(section, `an object with \`${name}\``, 'one that is not');
  }
  const own = new Fields(section, value);
  const secret = own.raw(name);
  own.done();
  const isSecret =
    typeof secret === 'string' &&
    secret.length >= SECRET_CHARS_MIN &&
    /^[\x21-\x7e]+$/.test(secret);
  if (secret === undefined || isSecret) return { [name]: secret } as never;
  const expected = `at least ${SECRET_CHARS_MIN} letters, digits or signs without spaces`;
  throw new ConfigError(own.at(name), expected, 'one that is not');
}

function readBounds(fields: Fields): Bounds {
  const own = Fields.patient('bounds', fields.raw('bounds') ?? {});
  const upTo = (name: string, max: number, fallback: number): number =>
    own.number(name, { min: 1, max, whole: true }, fallback);
  const bounds = {
    connections: upTo('connections', 1_000_000, 10_000),
    key: upTo('key', 65_536, 4096),
    body: upTo('body', 16_777_216, 65_536),
    cells: upTo('cells', KEYS_MAX_MAX, KEYS_MAX_DEFAULT),
    slowMs: own.duration('slow', 30_000),
    idleMs: own.duration('idle', Infinity),
    drainMs: own.duration('drain', 5_000),
  };
  own.done();
  return bounds;
}

function readSnapshot(fields: Fields): SnapshotConfig | undefined {
  const value = fields.raw('snapshot');
  if (value === undefined || value === false) return undefined;
  const own = Fields.patient('snapshot', typeof value === 'string' ? { file: value } : value);
  const isFile = (file: unknown): file is string => typeof file === 'string' && file !== '';
  const snapshot = {
    file: own.required('file', isFile, "a file's name"),
    everyMs: own.duration('every', Infinity),
    ageMsMax: own.duration('ageMax', DAY_MS),
  };
  own.done();
  return snapshot;
}
