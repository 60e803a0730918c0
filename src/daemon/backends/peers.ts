/**
 * A daemon's place in its fleet: limits that say so are kept together with the other daemons.
 *
 * It takes its place before anybody is answered, so that it knows how keys stand elsewhere when the first
 * question comes; and tells who came and who went, as others may want to know that from a log.
 */

import type { BackendFactory } from '../../backends/backend.ts';
import { PeersBackend } from '../../backends/peers/backend.ts';
import { fleetHashSeed } from '../../backends/peers/datagram-auth.ts';
import { type FleetView, PeerNode } from '../../backends/peers/node.ts';
import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { completesWithin } from '../../core/deadline.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import type { Hasher, HashSeed } from '../../core/hash.ts';
import type { Log } from '../../core/log.ts';
import type { Random } from '../../core/random.ts';
import type { PeersConfig } from '../config/peers.ts';
import { createTransport, type TransportContext } from './peer-transport.ts';

/** How long a daemon that starts waits for a way to the others, and then for them to tell it how keys stand. */
const OPEN_TIMEOUT_MS: Millis = 1000;
const SYNC_TIMEOUT_MS: Millis = 5000;

/** How often it is looked who is there. */
const POLL_MS: Millis = 1000;

/** One that has met nobody for so long may be the first, or cut off by a firewall: somebody should know. */
const NO_PEERS_WARNING_MS: Millis = 5000;

/** Somebody with another key may go on for ever; the log need not. */
const AUTH_WARNING_INTERVAL_MS: Millis = 60_000;

const NO_KEY_WARNING =
  'peers without a key: any program on this machine can change every limit; set peers.key';

export type { FleetView };

export interface PeerMembershipContext extends TransportContext {
  readonly random: Random;
  /** The one that surfaces hash keys with, made of `seedOf`. */
  readonly hasher: Hasher;
}

/** All of a fleet hash keys alike. */
export const fleetSeedFor = ({ key }: PeersConfig): HashSeed => fleetHashSeed(key);

export class PeerMembership {
  /** Makes limits that are kept together. */
  readonly backendFactory: BackendFactory;
  readonly #node: PeerNode;
  readonly #clock: Clock;
  readonly #log: Log;
  #knownPeers = new Map<number, string>();
  #openedAt: Millis | undefined;
  /** Somebody was met, or it was told that nobody is there. */
  #hasReportedPeers = false;
  #hasWarnedUnknown = false;
  #authFailed = 0;
  #authWarnedAt: Millis = -Infinity;
  #cancelPoll = (): void => {};

  /** @throws {ConfigError} if it cannot be as the configuration says. */
  static async create(
    config: PeersConfig,
    context: PeerMembershipContext,
  ): Promise<PeerMembership> {
    const transport = await createTransport(config.transport, context);
    const { clock, random, hasher, log } = context;
    const { options, key } = config;
    const onNoKey = (): void => log('warn', NO_KEY_WARNING);
    const node = new PeerNode({ options, transport, key, clock, random, hasher, onNoKey });
    return new PeerMembership(node, context);
  }

  private constructor(node: PeerNode, { clock, log }: PeerMembershipContext) {
    this.#node = node;
    this.#clock = clock;
    this.#log = log;
    this.backendFactory = {
      isRemote: false,
      create: (policy, context) => new PeersBackend(policy, context, node),
    };
  }

  /**
   * Joins, once the limits are made; comes back when it knows how keys stand, or after a moment if nobody
   * tells. Rejects if it can never join.
   */
  async join(): Promise<void> {
    const { transport, name } = this.view();
    const opened = this.#node.open().catch((error: unknown) => {
      throw new ConfigError(
        'peers',
        `an address to listen at (${errorMessageOf(error)})`,
        transport,
      );
    });
    await completesWithin(this.#clock, OPEN_TIMEOUT_MS, opened);
    if (
      this.view().isOpen &&
      !(await completesWithin(this.#clock, SYNC_TIMEOUT_MS, this.#node.synced))
    ) {
      this.#log('warn', 'peers have yet to tell how all keys stand; answering nevertheless');
    }
    opened.then(
      () => {
        if (this.view().isOpen) this.#log('info', 'one of a fleet', { through: transport, name });
      },
      (error) => this.#log('error', 'peers cannot be reached', { reason: errorMessageOf(error) }),
    );
    this.#schedulePoll();
  }

  view(): FleetView {
    return this.#node.view();
  }

  /** Tells what nobody was told of yet, and leaves. */
  async close(): Promise<void> {
    this.#cancelPoll();
    await this.#node.close();
  }

  /** Tells who came and who went since the last look. */
  #poll(): void {
    const { peers, authFailed, authFailedFrom, isOpen, counts } = this.view();
    const names = new Map(peers.map(({ id, name }) => [id, name]));
    for (const [id, name] of names) {
      if (!this.#knownPeers.has(id)) this.#log('info', 'peer is there', { peer: name });
    }
    for (const [id, name] of this.#knownPeers) {
      if (!names.has(id)) this.#log('warn', 'peer is gone', { peer: name });
    }
    this.#knownPeers = names;
    if (isOpen) this.#warnIfAlone(peers.length === 0);
    this.#warnUnknownLimits(counts.unknownLimits);
    this.#warnAuthFailures(authFailed, authFailedFrom);
    this.#schedulePoll();
  }

  #schedulePoll(): void {
    const at = this.#clock.now() + POLL_MS;
    this.#cancelPoll = schedule(this.#clock, at, () => this.#poll(), false);
  }

  /** Once after the start: whoever was there and went is told of by name. */
  #warnIfAlone(isAlone: boolean): void {
    const now = this.#clock.now();
    this.#openedAt ??= now;
    if (this.#hasReportedPeers || (isAlone && now - this.#openedAt < NO_PEERS_WARNING_MS)) return;
    this.#hasReportedPeers = true;
    if (isAlone)
      this.#log('warn', 'no peer is there yet: the first of its fleet, or out of their reach?');
  }

  /** Once: where daemons have different limits on purpose it would go on for ever. */
  #warnUnknownLimits(keys: number): void {
    if (keys === 0 || this.#hasWarnedUnknown) return;
    this.#hasWarnedUnknown = true;
    this.#log('warn', 'peers tell of limits that are not here: the same name and rule everywhere?');
  }

  #warnAuthFailures(authFailed: number, from: string): void {
    const now = this.#clock.now();
    if (authFailed === this.#authFailed || now - this.#authWarnedAt < AUTH_WARNING_INTERVAL_MS)
      return;
    const datagrams = authFailed - this.#authFailed;
    this.#log('warn', 'not sealed with our key: does every peer have the same one?', {
      datagrams,
      ...(from !== '' && { from }),
    });
    this.#authFailed = authFailed;
    this.#authWarnedAt = now;
  }
}
