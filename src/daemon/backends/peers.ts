/**
 * A daemon's place in its fleet: limits that say so are kept together with the other daemons.
 *
 * It takes its place before anybody is answered, so that it knows how keys stand elsewhere when the first
 * question comes; and tells who came and who went, as others may want to know that from a log.
 */

import type { ShareMaker } from '../../backends/backend.ts';
import { PeersShare } from '../../backends/peers/backend.ts';
import { fleetSeed } from '../../backends/peers/datagram-auth.ts';
import { FleetNode, type FleetView } from '../../backends/peers/node.ts';
import { alarm, type Clock, type Millis } from '../../core/clock.ts';
import { atMost } from '../../core/deadline.ts';
import { ConfigError, reasonOf } from '../../core/errors.ts';
import type { Hasher, HashSeed } from '../../core/hash.ts';
import type { Log } from '../../core/log.ts';
import type { Random } from '../../core/random.ts';
import type { PeersConfig } from '../config/peers.ts';
import { type TransportSetting, transportOf } from './peer-transport.ts';

/** How long a daemon that starts waits for a way to the others, and then for them to tell it how keys stand. */
const OPEN_WITHIN_MS: Millis = 1000;
const LEARN_WITHIN_MS: Millis = 5000;

/** How often it is looked who is there. */
const LOOK_MS: Millis = 1000;

/** One that has met nobody for so long may be the first, or cut off by a firewall: somebody should know. */
const ALONE_MS: Millis = 5000;

/** Somebody with another key may go on for ever; the log need not. */
const FORGED_AGAIN_MS: Millis = 60_000;

const NO_KEY =
  'peers without a key: any program on this machine can change every limit; set peers.key';

export type { FleetView };

export interface PlaceSetting extends TransportSetting {
  readonly random: Random;
  /** The one that surfaces hash keys with, made of `seedOf`. */
  readonly hasher: Hasher;
}

/** All of a fleet hash keys alike. */
export const seedOf = ({ key }: PeersConfig): HashSeed => fleetSeed(key);

export class PeersPlace {
  /** Makes limits that are kept together. */
  readonly share: ShareMaker;
  readonly #node: FleetNode;
  readonly #clock: Clock;
  readonly #log: Log;
  #names = new Map<number, string>();
  #openAt: Millis | undefined;
  /** Somebody was met, or it was told that nobody is there. */
  #isSettled = false;
  #isUnknownTold = false;
  #forged = 0;
  #forgedToldAt: Millis = -Infinity;
  #cancelLook = (): void => {};

  /** @throws {ConfigError} if it cannot be as the configuration says. */
  static async prepare(config: PeersConfig, setting: PlaceSetting): Promise<PeersPlace> {
    const transport = await transportOf(config.transport, setting);
    const { clock, random, hasher, log } = setting;
    const { options, key } = config;
    const onNoKey = (): void => log('warn', NO_KEY);
    const node = new FleetNode({ options, transport, key, clock, random, hasher, onNoKey });
    return new PeersPlace(node, setting);
  }

  private constructor(node: FleetNode, { clock, log }: PlaceSetting) {
    this.#node = node;
    this.#clock = clock;
    this.#log = log;
    this.share = {
      isRemote: false,
      make: (policy, setting) => new PeersShare(policy, setting, node),
    };
  }

  /**
   * Joins, once the limits are made; comes back when it knows how keys stand, or after a moment if nobody
   * tells. Rejects if it can never join.
   */
  async join(): Promise<void> {
    const { transport, name } = this.view();
    const opened = this.#node.open().catch((error: unknown) => {
      throw new ConfigError('peers', `an address to listen at (${reasonOf(error)})`, transport);
    });
    await atMost(this.#clock, OPEN_WITHIN_MS, opened);
    if (this.view().isOpen && !(await atMost(this.#clock, LEARN_WITHIN_MS, this.#node.learned))) {
      this.#log('warn', 'peers have yet to tell how all keys stand; answering nevertheless');
    }
    opened.then(
      () => {
        if (this.view().isOpen) this.#log('info', 'one of a fleet', { through: transport, name });
      },
      (error) => this.#log('error', 'peers cannot be reached', { reason: reasonOf(error) }),
    );
    this.#lookLater();
  }

  view(): FleetView {
    return this.#node.view();
  }

  /** Tells what nobody was told of yet, and leaves. */
  async close(): Promise<void> {
    this.#cancelLook();
    await this.#node.close();
  }

  /** Tells who came and who went since the last look. */
  #look(): void {
    const { peers, forged, forgedFrom, isOpen, counts } = this.view();
    const names = new Map(peers.map(({ id, name }) => [id, name]));
    for (const [id, name] of names) {
      if (!this.#names.has(id)) this.#log('info', 'peer is there', { peer: name });
    }
    for (const [id, name] of this.#names) {
      if (!names.has(id)) this.#log('warn', 'peer is gone', { peer: name });
    }
    this.#names = names;
    if (isOpen) this.#tellAlone(peers.length === 0);
    this.#tellUnknown(counts.unknown);
    this.#tellForged(forged, forgedFrom);
    this.#lookLater();
  }

  #lookLater(): void {
    const at = this.#clock.now() + LOOK_MS;
    this.#cancelLook = alarm(this.#clock, at, () => this.#look(), false);
  }

  /** Once after the start: whoever was there and went is told of by name. */
  #tellAlone(isAlone: boolean): void {
    const now = this.#clock.now();
    this.#openAt ??= now;
    if (this.#isSettled || (isAlone && now - this.#openAt < ALONE_MS)) return;
    this.#isSettled = true;
    if (isAlone)
      this.#log('warn', 'no peer is there yet: the first of its fleet, or out of their reach?');
  }

  /** Once: where daemons have different limits on purpose it would go on for ever. */
  #tellUnknown(keys: number): void {
    if (keys === 0 || this.#isUnknownTold) return;
    this.#isUnknownTold = true;
    this.#log('warn', 'peers tell of limits that are not here: the same name and rule everywhere?');
  }

  #tellForged(forged: number, from: string): void {
    const now = this.#clock.now();
    if (forged === this.#forged || now - this.#forgedToldAt < FORGED_AGAIN_MS) return;
    const datagrams = forged - this.#forged;
    this.#log('warn', 'not sealed with our key: does every peer have the same one?', {
      datagrams,
      ...(from !== '' && { from }),
    });
    this.#forged = forged;
    this.#forgedToldAt = now;
  }
}
