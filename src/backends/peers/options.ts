/**
 * `share: peers(...)`: each process decides by its own count, and takes off what the others served.
 *
 *     const fleet = peers({ transport: udp({ … }), key: process.env.FLEET_KEY });
 *     const api = limiter({ name: 'api', limit: { bucket: { rate: '100/s' } }, share: fleet });
 *     api.ask('alice'); // at once, as if it were alone
 *
 * Limits of the same name and rule are one limit for all nodes that share a transport and a key.
 */

import { hostname } from 'node:os';
import { type Clock, isClock, type Millis, schedule, systemClock } from '../../core/clock.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import { OptionReader } from '../../core/options.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';
import { type Random, systemRandom } from '../../core/random.ts';
import type { BackendFactory } from '../backend.ts';
import { PeersBackend } from './backend.ts';
import { type FleetView, PeerNode } from './node.ts';
import { PEER_DEFAULTS, type PeerOptions } from './settings.ts';
import type { Transport } from './transport.ts';

/** How a node reaches the others of its fleet, and how often it tells them what it served. */
export interface PeersOptions {
  /** How nodes reach each other. */
  readonly transport: Transport;
  /** What all nodes know and nobody else: every datagram is sealed with it. Only loopback does without. */
  readonly key?: string;
  /** What this node is called by people. Default: the host's name and the process. */
  readonly name?: string;
  /** `eager` (default) tells at once of keys that are busy, `periodic` only so often. */
  readonly exchange?: 'eager' | 'periodic';
  /** How often it reports. Default 100 ms. */
  readonly interval?: Duration;
  /** Hits of a key that nobody was told of, from which on they are told at once. Default 1. */
  readonly flushThreshold?: number;
  /** Reports a second at most; more is told in fewer, fuller ones. Default 100. */
  readonly maxReports?: number;
  /** A node that was silent for so long is gone. Default 5 s, or three intervals if that is longer. */
  readonly peerTimeout?: Duration;
  readonly clock?: Clock;
  readonly random?: Random;
}

/** This process's place in a fleet: the `share` of its limiters. */
export interface Peers extends BackendFactory {
  /** Resolves when this node listens; rejects if it cannot. Until then, and without it, it decides alone. */
  readonly opened: Promise<void>;
  /** Who is there, how old each view is, what was lost. */
  view(): FleetView;
  /** Tells what nobody was told of yet, and leaves the fleet. */
  close(): Promise<void>;
}

/** Transports that are part of a fleet: each carries the words of one node. */
const transportsInUse = new WeakSet<Transport>();

/** A transport that takes longer than this to open may never be. */
const SLOW_OPEN_MS: Millis = 5000;

/** Joins a fleet. @throws {ConfigError} if the options make no sense. */
export function peers(options: PeersOptions): Peers {
  const fields = new OptionReader('', options, 'an object with a transport');
  const isTransport = (value: unknown): value is Transport =>
    typeof (value as Transport | null)?.broadcast === 'function';
  const transport = fields.required('transport', isTransport, 'a transport, such as udp(...)');
  if (transportsInUse.has(transport)) fields.throwFor('transport', 'one that no other fleet uses');
  const key = readKey(fields);
  const clock = fields.optional('clock', isClock, 'a clock') ?? systemClock;
  const random = fields.optional('random', isRandom, 'a function') ?? systemRandom;
  const node = new PeerNode({ options: readPeerOptions(fields), transport, key, clock, random });
  fields.finish();
  transportsInUse.add(transport);
  const opened = node.open();
  const warnOfSlow = (): void => {
    const so = `${transport.name} has not opened for ${SLOW_OPEN_MS / 1000} s`;
    emitProcessWarning(
      'PEERS',
      `${so}; until it does, this process decides alone`,
      `${transport.name} slow`,
    );
  };
  const calm = schedule(clock, clock.now() + SLOW_OPEN_MS, warnOfSlow, false);
  opened.then(calm, calm);
  let isClosed = false;
  opened.catch((error: unknown) => {
    if (isClosed) return;
    const why = `${transport.name}: ${errorMessageOf(error)}`;
    emitProcessWarning('PEERS', `peers cannot be reached: ${why}`, transport.name);
  });
  return {
    isRemote: false,
    create: (policy, context) => new PeersBackend(policy, context, node),
    opened,
    view: () => node.view(),
    async close() {
      isClosed = true;
      calm();
      await node.close();
      transportsInUse.delete(transport);
    },
  };
}

/** How a node behaves, for the library and for a configuration alike. */
export function readPeerOptions(fields: OptionReader): PeerOptions {
  const intervalMs = fields.duration('interval', PEER_DEFAULTS.intervalMs);
  const minPeerTimeoutMs = MIN_INTERVALS_PER_TIMEOUT * intervalMs;
  const peerTimeoutMs = fields.duration(
    'peerTimeout',
    Math.max(PEER_DEFAULTS.peerTimeoutMs, minPeerTimeoutMs),
  );
  if (peerTimeoutMs < minPeerTimeoutMs)
    fields.report('peerTimeout', `at least ${MIN_INTERVALS_PER_TIMEOUT} times \`interval\``);
  const isName = (value: unknown): value is string => typeof value === 'string' && value !== '';
  return {
    ...PEER_DEFAULTS,
    name: fields.optional('name', isName, 'a text of at least one letter') ?? defaultNodeName(),
    exchange: fields.oneOf('exchange', ['eager', 'periodic'] as const, PEER_DEFAULTS.exchange),
    intervalMs,
    flushThreshold: fields.number('flushThreshold', { min: 1 }, PEER_DEFAULTS.flushThreshold),
    maxReports: fields.number('maxReports', { min: 1, max: 10_000 }, PEER_DEFAULTS.maxReports),
    peerTimeoutMs,
  };
}

/** A node gives a sign of life every interval at the latest. One that is lost is no reason to be gone. */
const MIN_INTERVALS_PER_TIMEOUT = 3;

const defaultNodeName = (): string => `${hostname()}:${process.pid}`;

/** A key that can be guessed seals nothing. */
const MIN_KEY_LENGTH = 16;

/** It is a secret, also one that is too short: errors end up in logs. */
export function readKey(fields: OptionReader): string | undefined {
  const key = fields.get('key');
  if (key === undefined || (typeof key === 'string' && key.length >= MIN_KEY_LENGTH)) return key;
  const hidden = typeof key === 'string' ? '•'.repeat(key.length) : '•••';
  throw new ConfigError(
    fields.pathOf('key'),
    `a text of at least ${MIN_KEY_LENGTH} characters`,
    hidden,
  );
}

const isRandom = (value: unknown): value is Random => typeof value === 'function';
