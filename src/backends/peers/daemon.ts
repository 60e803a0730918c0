/**
 * The peers backend in a daemon: limits of the fleet are decided here and reported to the other daemons.
 *
 * The daemon joins before it listens, so that it knows how keys stand elsewhere when the first check arrives. Peers
 * that appear and disappear are logged.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { completesWithin } from '../../core/deadline.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import type { Log } from '../../core/log.ts';
import type { MetricFamily } from '../../core/metric-family.ts';
import type { BackendFactory } from '../backend.ts';
import type {
  BackendModule,
  BackendSection,
  BackendStartContext,
  LimitBackend,
  RunningBackend,
} from '../daemon-backend.ts';
import { dryRunPeers, peersFactory } from './backend.ts';
import { type PeersConfig, readPeersConfig } from './daemon-config.ts';
import { createTransport } from './daemon-transport.ts';
import { peersMetrics, peersPage } from './daemon-view.ts';
import { fleetHashSeed } from './datagram-auth.ts';
import { type FleetView, PeerNode } from './node.ts';
import type { Transport } from './transport.ts';

/** How long a starting daemon waits for its transport, and then for the state of its peers. */
const OPEN_TIMEOUT_MS: Millis = 1000;
const SYNC_TIMEOUT_MS: Millis = 5000;

/** Interval of the check for changes that are logged. */
const POLL_MS: Millis = 1000;

/** A daemon without peers for so long is the first of its fleet, or a firewall cuts it off. */
const NO_PEERS_WARNING_MS: Millis = 5000;

/** A sender with another key may go on for ever: the log has one line a minute. */
const AUTH_WARNING_INTERVAL_MS: Millis = 60_000;

const NO_KEY_WARNING =
  'peers without a key: any program on this machine can change every limit; set peers.key';

const NAME = 'peers';

export const peersModule: BackendModule = {
  name: NAME,
  readSection,
  page: peersPage,
  overrides: [
    {
      field: 'udp',
      variable: 'SLUICE_PEERS',
      kind: 'addresses',
      flag: {
        name: 'peers',
        help: `the other daemons of the fleet (gossip over UDP): a multicast group, or the address of
every daemon, this one first; off for none; may be repeated. See docs/peers.md`,
      },
    },
    { field: 'key', variable: 'SLUICE_PEERS_KEY', kind: 'text' },
  ],
};

const LIMIT: LimitBackend = {
  name: NAME,
  identity: NAME,
  view: true,
  unsupported: 'left out: peers can share a bucket, and no other rule',
  dryRun: () => dryRunPeers,
};

function readSection(value: unknown, path: string): BackendSection {
  const config = readPeersConfig(value, path);
  const { transport, key } = config;
  return {
    limit: LIMIT,
    identity: JSON.stringify(config),
    isDefault: true,
    hashSeed: fleetHashSeed(key),
    servers: transport.kind === 'redis' ? [{ field: `${path}.redis`, url: transport.url }] : [],
    start: async (context) =>
      new RunningPeers(config, await createTransport(transport, context), context),
  };
}

class RunningPeers implements RunningBackend {
  readonly #node: PeerNode;
  readonly #clock: Clock;
  readonly #log: Log;
  #knownPeers = new Map<number, string>();
  #openedAt: Millis | undefined;
  /** A peer was found, or the warning that there is none was logged. */
  #hasReportedPeers = false;
  #hasWarnedUnknown = false;
  #authFailed = 0;
  #authWarnedAt: Millis = -Infinity;
  #cancelPoll = (): void => {};

  constructor(
    { options, key }: PeersConfig,
    transport: Transport,
    { clock, random, hasher, log }: BackendStartContext,
  ) {
    const onNoKey = (): void => log('warn', NO_KEY_WARNING);
    this.#node = new PeerNode({ options, transport, key, clock, random, hasher, onNoKey });
    this.#clock = clock;
    this.#log = log;
  }

  createFactory(): BackendFactory {
    return peersFactory(this.#node);
  }

  /** Resolves when the state of the peers is known, or after a timeout. Rejects if the transport cannot open. */
  async join(): Promise<void> {
    const { transport, name } = this.view();
    const opened = this.#node.open().catch((error: unknown) => {
      const expected = `an address to listen at (${errorMessageOf(error)})`;
      throw new ConfigError('peers', expected, transport);
    });
    await completesWithin(this.#clock, OPEN_TIMEOUT_MS, opened);
    const synced = () => completesWithin(this.#clock, SYNC_TIMEOUT_MS, this.#node.synced);
    if (this.view().isOpen && !(await synced()))
      this.#log('warn', 'state of the peers is incomplete; starting nevertheless');
    opened.then(
      () => {
        if (this.view().isOpen) this.#log('info', 'joined the fleet', { through: transport, name });
      },
      (error) => this.#log('error', 'peers unavailable', { reason: errorMessageOf(error) }),
    );
    this.#schedulePoll();
  }

  view(): FleetView {
    return this.#node.view();
  }

  metrics(): readonly MetricFamily[] {
    return peersMetrics(this.view());
  }

  async close(): Promise<void> {
    this.#cancelPoll();
    await this.#node.close();
  }

  #poll(): void {
    const { peers, authFailed, authFailedFrom, isOpen, counts } = this.view();
    const names = new Map(peers.map(({ id, name }) => [id, name]));
    for (const [id, name] of names) {
      if (!this.#knownPeers.has(id)) this.#log('info', 'peer found', { peer: name });
    }
    for (const [id, name] of this.#knownPeers) {
      if (!names.has(id)) this.#log('warn', 'peer gone', { peer: name });
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

  /** Once after the start: a peer that disappears later is logged by name. */
  #warnIfAlone(isAlone: boolean): void {
    const now = this.#clock.now();
    this.#openedAt ??= now;
    if (this.#hasReportedPeers || (isAlone && now - this.#openedAt < NO_PEERS_WARNING_MS)) return;
    this.#hasReportedPeers = true;
    if (isAlone)
      this.#log('warn', 'no peers found: is this the first daemon, or does a firewall block it?');
  }

  /** Once: daemons may have different limits on purpose. */
  #warnUnknownLimits(keys: number): void {
    if (keys === 0 || this.#hasWarnedUnknown) return;
    this.#hasWarnedUnknown = true;
    this.#log('warn', 'peers report unknown limits: do all daemons have the same names and rules?');
  }

  #warnAuthFailures(authFailed: number, from: string): void {
    const now = this.#clock.now();
    const datagrams = authFailed - this.#authFailed;
    if (datagrams === 0 || now - this.#authWarnedAt < AUTH_WARNING_INTERVAL_MS) return;
    const details = { datagrams, ...(from !== '' && { from }) };
    this.#log('warn', 'datagrams failed authentication: do all peers have the same key?', details);
    this.#authFailed = authFailed;
    this.#authWarnedAt = now;
  }
}
