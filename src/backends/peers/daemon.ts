/**
 * The peers backend in a daemon: limits of the fleet are decided here and reported to the other daemons.
 *
 * The daemon joins before it listens, so that it has the levels of other daemons when the first check arrives. It logs
 * peers that appear and disappear.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { completesWithin } from '../../core/deadline.ts';
import { ConfigError, errorMessageOf, InUseError } from '../../core/errors.ts';
import type { Log, LogFields } from '../../core/log.ts';
import type {
  BackendModule,
  BackendSection,
  BackendStartContext,
  LimitBackend,
  RunningBackend,
} from '../daemon-backend.ts';
import { type PeersConfig, readPeersConfig } from './daemon-config.ts';
import { createTransport } from './daemon-transport.ts';
import { peersMetrics, peersPage } from './daemon-view.ts';
import { fleetHashSeed } from './datagram-auth.ts';
import { dryRunPeers, peersFactory } from './factory.ts';
import { type FleetView, PeerNode } from './node.ts';
import { peerLogger } from './peer-log.ts';
import { REJECT_MESSAGES, type RejectedSource } from './rejected-sources.ts';
import type { Transport } from './transport.ts';
import type { WireVersions } from './wire-versions.ts';

/** How long a starting daemon waits for its transport, and after that for the state of its peers. */
const OPEN_TIMEOUT_MS: Millis = 1000;
const SYNC_TIMEOUT_MS: Millis = 5000;

/** Interval of the check for changes that are logged. */
const POLL_MS: Millis = 1000;

/** A daemon without peers for this long is the first of its fleet, or a firewall cuts it off. */
const NO_PEERS_WARNING_MS: Millis = 5000;

const NO_KEY_WARNING =
  'peers without a key: any program on this machine can change every limit; set peers.key';

const SUSPENDED_WARNING =
  'was suspended: limits of the fleet refuse calls until the state of the peers is here';

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
every daemon, this one first; off for none; may be repeated. See docs/reference/peers.md`,
      },
    },
    { field: 'key', variable: 'SLUICE_PEERS_KEY', kind: 'list' },
    { field: 'seed', variable: 'SLUICE_PEERS_SEED', kind: 'text' },
  ],
};

const LIMIT: LimitBackend = {
  name: NAME,
  identity: NAME,
  view: true,
  unsupported: 'left out: peers can share bucket, window and lockout, and no other rule',
  dryRun: () => dryRunPeers,
};

function readSection(value: unknown, path: string): BackendSection {
  const config = readPeersConfig(value, path);
  const { transport, secrets } = config;
  return {
    limit: LIMIT,
    identity: JSON.stringify(config),
    isDefault: true,
    hashSeed: fleetHashSeed(secrets.seed),
    servers: transport.kind === 'redis' ? [{ field: `${path}.redis`, url: transport.url }] : [],
    start: async (context) => runPeers(config, await createTransport(transport, context), context),
  };
}

function runPeers(
  { options, secrets }: PeersConfig,
  transport: Transport,
  { clock, random, hasher, log }: BackendStartContext,
): RunningBackend {
  const onNoKey = (): void => log('warn', NO_KEY_WARNING);
  const onRejected = rejectionLogger(options.versions, log);
  const onResume = (suspendedMs: Millis): void =>
    log('warn', SUSPENDED_WARNING, { seconds: Math.round(suspendedMs / 1000) });
  const reporters = { onNoKey, onRejected, onResume };
  const node = new PeerNode({
    options,
    transport,
    ...secrets,
    clock,
    random,
    hasher,
    ...reporters,
  });
  const logChanges = changeLogger(clock, log);
  let cancelPoll = (): void => {};
  const schedulePoll = (): void => {
    cancelPoll = schedule(clock, clock.now() + POLL_MS, poll, false);
  };
  const poll = (): void => {
    logChanges(node.view());
    schedulePoll();
  };
  return {
    createFactory: () => peersFactory(node),
    channel: node.channel,
    /** Resolves when the state of the peers is known, or after a timeout. Rejects if the transport cannot be opened. */
    async join() {
      const { transport: through, name } = node.view();
      const opened = node.open().catch((error: unknown) => {
        const expected = `an address to listen at (${errorMessageOf(error)})`;
        const isInUse = (error as NodeJS.ErrnoException).code === 'EADDRINUSE';
        throw new (isInUse ? InUseError : ConfigError)('peers', expected, through);
      });
      await completesWithin(clock, OPEN_TIMEOUT_MS, opened);
      if (node.view().isOpen && !(await completesWithin(clock, SYNC_TIMEOUT_MS, node.synced)))
        log('warn', 'state of the peers is incomplete; starting nevertheless');
      opened.then(
        () => {
          if (node.view().isOpen) log('info', 'joined the fleet', { through, name });
        },
        (error) => log('error', 'peers unavailable', { reason: errorMessageOf(error) }),
      );
      schedulePoll();
    },
    isJoining: () => node.isCatchingUp(),
    view: () => node.view(),
    metrics: () => peersMetrics(node.view()),
    async close() {
      cancelPoll();
      await node.close();
    },
  };
}

/** Logs rejected datagrams. A split fleet exceeds its limits, so it is an error; a wrong key may be an attack. */
const rejectionLogger =
  ({ oldest, newest }: WireVersions, log: Log) =>
  ({ reason, from, version }: RejectedSource): void => {
    const address: LogFields = from === '' ? {} : { from };
    const spoken = oldest === newest ? `${newest}` : `${oldest}-${newest}`;
    if (reason === 'auth_failed') log('warn', REJECT_MESSAGES[reason], address);
    else log('error', REJECT_MESSAGES[reason], { ...address, version, spoken });
  };

/** Logs changes since the last view. */
function changeLogger(clock: Clock, log: Log): (view: FleetView) => void {
  const logPeers = peerLogger(log);
  let openedAt: Millis | undefined;
  /** True if a peer was found, or the warning that there is none was logged. */
  let hasReportedPeers = false;
  let hasWarnedUnknown = false;

  /** Warns once after the start: a peer that disappears later is logged by name. */
  const warnIfAlone = (isAlone: boolean, now: Millis): void => {
    openedAt ??= now;
    if (hasReportedPeers || (isAlone && now - openedAt < NO_PEERS_WARNING_MS)) return;
    hasReportedPeers = true;
    if (isAlone)
      log('warn', 'no peers found: is this the first daemon, or does a firewall block it?');
  };

  /** Warns once: daemons may have different limits on purpose. */
  const warnUnknownLimits = (keys: number): void => {
    if (keys === 0 || hasWarnedUnknown) return;
    hasWarnedUnknown = true;
    log('warn', 'peers report unknown limits: do all daemons have the same names and rules?');
  };

  return ({ peers, isOpen, counts }) => {
    const now = clock.now();
    logPeers(peers);
    if (isOpen) warnIfAlone(peers.length === 0, now);
    warnUnknownLimits(counts.unknownLimits);
  };
}
