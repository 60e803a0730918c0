/**
 * `backend: peers(...)`: each process decides from its own count minus the hits that peers report (gossip).
 *
 *     const fleet = peers({ transport: udp({ … }), key: process.env.FLEET_KEY });
 *     const api = limiter({ name: 'api', limit: { bucket: { rate: '100/s' } }, backend: fleet });
 *     api.check('alice'); // synchronous, no round trip
 *
 * Limits with equal names and rules are one limit on all nodes with a common transport and key.
 */

import { hostname } from 'node:os';
import { type Clock, isClock, type Millis, schedule, systemClock } from '../../core/clock.ts';
import { isNonEmptyString } from '../../core/config-helpers.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import { isFunction, OptionReader } from '../../core/options.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';
import { type Random, systemRandom } from '../../core/random.ts';
import type { BackendFactory } from '../backend.ts';
import { PEER_DEFAULTS, type PeerOptions } from './context.ts';
import type { FleetKey, FleetSecrets } from './datagram-auth.ts';
import { peersFactory } from './factory.ts';
import { type FleetView, PeerNode } from './node.ts';
import type { Transport } from './transport.ts';

/** The node's connection to its peers, and how often it reports its hits. */
export interface PeersOptions {
  readonly transport: Transport;
  /**
   * Shared secret of the fleet, which encrypts every datagram. Required unless the transport is loopback only. A list
   * during a key rotation: the first key encrypts, each of them decrypts.
   */
  readonly key?: FleetKey | undefined;
  /** Secret of the key hash, equal on all nodes. Default: the key. Required with several keys. */
  readonly seed?: string | undefined;
  /** Display name of this node. Default: host name and process id. */
  readonly name?: string | undefined;
  /** `eager` (default) reports hits at once, within `maxReports`; `periodic` reports only every `interval`. */
  readonly exchange?: 'eager' | 'periodic' | undefined;
  /** Interval between two reports. Default 100 ms. */
  readonly interval?: Duration | undefined;
  /** `eager`: pending hits of one key that trigger an early report. Default 1. */
  readonly flushThreshold?: number | undefined;
  /** Early reports per second; above this rate, hits are batched into fewer reports. Default 100. */
  readonly maxReports?: number | undefined;
  /** A peer is gone after this time of silence. Default 5 s, at least three intervals. */
  readonly peerTimeout?: Duration | undefined;
  readonly clock?: Clock | undefined;
  readonly random?: Random | undefined;
}

/** This process's membership in a fleet: the `backend` of its limiters. */
export interface PeersMembership extends BackendFactory {
  /** Resolves when this node listens; rejects if it cannot. Before that, it decides from its own count. */
  readonly opened: Promise<void>;
  /** Returns known peers, the age of each view, and message counters. */
  view(): FleetView;
  /** Sends the pending hits and leaves the fleet. */
  close(): Promise<void>;
}

/** Transports of running nodes: a transport serves one node. */
const transportsInUse = new WeakSet<Transport>();

/** A transport that has not opened after this long causes a warning. */
const SLOW_OPEN_MS: Millis = 5000;

/** Joins a fleet. @throws {ConfigError} if an option is invalid. */
export function peers(options: PeersOptions): PeersMembership {
  const fields = new OptionReader('', options, 'an object with a transport');
  const isTransport = (value: unknown): value is Transport =>
    typeof (value as Transport | null)?.broadcast === 'function';
  const transport = fields.required('transport', isTransport, 'a transport, such as udp(...)');
  if (transportsInUse.has(transport)) {
    fields.throwFor('transport', 'a transport that no other node uses');
  }
  const secrets = readSecrets(fields);
  const clock = fields.optional('clock', isClock, 'a clock') ?? systemClock;
  const random = fields.optional('random', isFunction<Random>, 'a function') ?? systemRandom;
  const node = new PeerNode({
    options: readPeerOptions(fields),
    transport,
    ...secrets,
    clock,
    random,
  });
  fields.finish();
  transportsInUse.add(transport);
  const opened = node.open();
  const warnSlowOpen = (): void => {
    const problem = `${transport.name} has not opened for ${SLOW_OPEN_MS / 1000} s`;
    const effect = 'until it does, this process decides from its own count';
    emitProcessWarning('PEERS', `${problem}; ${effect}`, `${transport.name} slow`);
  };
  const cancelWarning = schedule(clock, clock.now() + SLOW_OPEN_MS, warnSlowOpen, false);
  opened.then(cancelWarning, cancelWarning);
  let isClosed = false;
  opened.catch((error: unknown) => {
    if (isClosed) return;
    const reason = `${transport.name}: ${errorMessageOf(error)}`;
    emitProcessWarning('PEERS', `peers cannot be reached: ${reason}`, transport.name);
  });
  return {
    ...peersFactory(node),
    opened,
    view: () => node.view(),
    async close() {
      isClosed = true;
      cancelWarning();
      await node.close();
      transportsInUse.delete(transport);
    },
  };
}

/** Reads a node's options, for the library and for the daemon's configuration. */
export function readPeerOptions(fields: OptionReader): PeerOptions {
  const intervalMs = fields.duration('interval', PEER_DEFAULTS.intervalMs);
  const minPeerTimeoutMs = MIN_INTERVALS_PER_TIMEOUT * intervalMs;
  const defaultTimeoutMs = Math.max(PEER_DEFAULTS.peerTimeoutMs, minPeerTimeoutMs);
  const peerTimeoutMs = fields.duration('peerTimeout', defaultTimeoutMs);
  if (peerTimeoutMs < minPeerTimeoutMs)
    fields.report('peerTimeout', `at least ${MIN_INTERVALS_PER_TIMEOUT} times \`interval\``);
  return {
    ...PEER_DEFAULTS,
    name: fields.optional('name', isNonEmptyString, 'a non-empty string') ?? defaultNodeName(),
    exchange: fields.oneOf('exchange', ['eager', 'periodic'] as const, PEER_DEFAULTS.exchange),
    intervalMs,
    flushThreshold: fields.number('flushThreshold', { min: 1 }, PEER_DEFAULTS.flushThreshold),
    maxReports: fields.number('maxReports', { min: 1, max: 10_000 }, PEER_DEFAULTS.maxReports),
    peerTimeoutMs,
  };
}

/** A node sends at least one heartbeat per interval, so one lost datagram does not time it out. */
const MIN_INTERVALS_PER_TIMEOUT = 3;

const defaultNodeName = (): string => `${hostname()}:${process.pid}`;

/** A shorter key could be guessed. */
const MIN_KEY_LENGTH = 16;

/** The most keys at once; a rotation needs two. */
const MAX_KEYS = 4;

/** Reads `key` and `seed`. */
export function readSecrets(fields: OptionReader): FleetSecrets {
  const seed = fields.get('seed'); // read before the key, which may be invalid: an option that is not read counts as unknown
  const key = readKey(fields.pathOf('key'), fields.get('key'));
  if (seed !== undefined) return { key, seed: readSecret(fields.pathOf('seed'), seed) };
  if (key && key.length > 1) {
    const value = 'the secret of the key hash, as there are several keys; at first the old key';
    throw new ConfigError(fields.pathOf('seed'), value, undefined);
  }
  return { key, seed: key?.[0] };
}

function readKey(path: string, value: unknown): readonly string[] | undefined {
  if (value === undefined) return undefined;
  if (!Array.isArray(value)) return [readSecret(path, value)];
  if (value.length === 0 || value.length > MAX_KEYS)
    throw new ConfigError(path, `1 to ${MAX_KEYS} secrets`, value.length);
  return value.map((each, n) => readSecret(`${path}[${n}]`, each));
}

/** Reads a secret. Errors appear in logs, so a secret that is too short is masked. */
function readSecret(path: string, value: unknown): string {
  if (typeof value === 'string' && value.length >= MIN_KEY_LENGTH) return value;
  const hidden = typeof value === 'string' ? '•'.repeat(value.length) : '•••';
  throw new ConfigError(path, `a string of at least ${MIN_KEY_LENGTH} characters`, hidden);
}
