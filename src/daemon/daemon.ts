/**
 * The daemon: decides for all clients of a host, over three protocols.
 *
 *     line ─┐                                         ┌─ local limiters, their state in tables
 *     RESP ─┼─▶ protocol handlers ─▶ router ─▶ limits ┤
 *     HTTP ─┘                                         └─ limiters on a backend
 *
 * It starts from a configuration and the snapshot of its predecessor, applies another configuration on reload, and
 * stops by answering pending requests and writing a snapshot.
 */

import { type LimitingFields, logLimiting } from '../adapters/metrics/log.ts';
import type { BackendModule } from '../backends/daemon-backend.ts';
import { GcraTable } from '../backends/local/gcra-table.ts';
import { batchClock, type Clock, type Millis, schedule, systemClock } from '../core/clock.ts';
import { UNLIMITED } from '../core/decision.ts';
import { errorMessageOf } from '../core/errors.ts';
import { createHasher, type Hasher, type HashSeed, randomHashSeed } from '../core/hash.ts';
import { formatListenAddress, isLoopback } from '../core/listen-address.ts';
import type { Log } from '../core/log.ts';
import { type Random, systemRandom } from '../core/random.ts';
import { backgroundIdle, nextTurn, runInSlices } from '../core/steps.ts';
import { SyncLimiter } from '../limiter/sync-limiter.ts';
import { BackendProbe, unavailableLimits } from './backend-probe.ts';
import { BACKENDS } from './backends/registry.ts';
import { CallRecorder } from './calls/call-recorder.ts';
import type { OverloadConfig } from './config/overload.ts';
import { type Config, listenAddressesOf } from './config/read.ts';
import { shadowTest } from './config/shadow.ts';
import { ControlJournal } from './control/control-journal.ts';
import { ControlSharing } from './control/control-sharing.ts';
import { Controls } from './control/controls.ts';
import { DenialLog, type DenialSource, topKeysOf } from './denials/denial-log.ts';
import { DenialRecorder } from './denials/denial-recorder.ts';
import { describeConfig } from './effective-config.ts';
import { Health } from './health.ts';
import { History } from './history/history.ts';
import { toKeyText } from './keys/binary-key.ts';
import { describeLimits, Metrics } from './metrics.ts';
import type { ReloadResult, ReloadWarning } from './protocols/http/admin-routes.ts';
import { createKeyExtractor } from './protocols/http/key.ts';
import { type IgnoredHeader, proxyWarning } from './protocols/http/proxy-warning.ts';
import type { Readiness } from './protocols/http/readiness.ts';
import { HttpServer, type HttpSettings } from './protocols/http/server/server.ts';
import { lineProtocol } from './protocols/line/handler.ts';
import { respProtocol } from './protocols/resp/handler.ts';
import { RESP_BOUNDS } from './protocols/resp/parser.ts';
import {
  changesOf,
  describeChanges,
  movedBetweenServers,
  restartWarnings,
} from './reload-changes.ts';
import {
  closeLimiters,
  isLimitName,
  type LimiterEntry,
  LimiterRegistry,
  type RegistryChange,
} from './router/limiter-registry.ts';
import { indexRoutes, type RouteIndex } from './router/route-index.ts';
import { Router } from './router/router.ts';
import { changedSections, fleetHashSeedOf, RunningBackends } from './running-backends.ts';
import { Connections } from './server/connections.ts';
import {
  type Accept,
  type ListenerChange,
  Listeners,
  type ProtocolAddress,
} from './server/listeners.ts';
import { NO_SHEDDING, Overload } from './server/overload.ts';
import { OverloadLog } from './server/overload-log.ts';
import { Turns } from './server/turns.ts';
import { type FileLocker, SnapshotClaim } from './snapshot-claim.ts';
import { loadControls, loadSnapshot, Snapshotter } from './snapshotter.ts';
import type { WorkerPool } from './workers/worker-pool.ts';

/** A configuration, or its mistakes as text. */
type ConfigLoad = { readonly config: Config } | { readonly problems: readonly string[] };

export interface DaemonContext {
  readonly log: Log;
  readonly load: () => ConfigLoad | Promise<ConfigLoad>;
  /** The absolute path of the file that `load` reads. */
  readonly file?: string | undefined;
  readonly version: string;
  /** Defaults to all backends of this package. */
  readonly backends?: readonly BackendModule[];
  readonly clock?: Clock;
  readonly random?: Random;
  /** Processes that do the input and output of connections. */
  readonly workers?: Pick<WorkerPool, 'relay' | 'metrics'> | undefined;
  /** Locks the snapshot file against other daemons; without it, several may use one. */
  readonly lock?: FileLocker | undefined;
}

/** Of a limit that needs settling, while no client takes a permit of it. */
const NO_PERMITS =
  'checks of this limit take no permit, so it limits nothing: check with HOLD (RESP) or hold=1 (HTTP) and settle the permit';

/** To a client that asks for a reload: success would mean that a file is in use. SIGHUP still opens removed sockets. */
const NO_FILE =
  'the daemon was started without a configuration file, so nothing can be read again: start it with --config FILE';

/** A warning of a reload. */
const UNCONVERTED = 'keys of the limit were not converted: its server is unavailable';

/** How long a stopping daemon goes on answering: requests may still be on their way. */
const SHUTDOWN_GRACE_MS: Millis = 50;

interface DaemonComponents {
  readonly clock: Clock;
  readonly seed: HashSeed;
  readonly hasher: Hasher;
  readonly backends: RunningBackends;
  readonly claim: SnapshotClaim;
}

export class Daemon {
  readonly router: Router;
  readonly controls: Controls;
  readonly #controlSharing: ControlSharing;
  readonly #controlJournal: ControlJournal;
  readonly #log: Log;
  readonly #onIgnoredHeader: (ignored: IgnoredHeader) => void;
  readonly #loadConfig: DaemonContext['load'];
  readonly #file: string | undefined;
  readonly #clock: Clock;
  readonly #backends: RunningBackends;
  readonly #registry: LimiterRegistry;
  readonly #lineConnections: Connections;
  readonly #gcraTable: GcraTable;
  readonly #respConnections: Connections;
  readonly #httpServer: HttpServer;
  readonly #metrics: Metrics;
  readonly #listeners: Listeners;
  readonly #snapshotter: Snapshotter;
  readonly #snapshotClaim: SnapshotClaim;
  readonly #denialLog: DenialLog;
  readonly #overload: Overload;
  readonly #overloadLog: OverloadLog;
  readonly #health: Health;
  readonly #history: History;
  readonly #probe: BackendProbe;
  /** What ends the log of a limit's decreases. */
  readonly #decreaseLogs = new Map<LimiterEntry, () => void>();
  #config: Config;
  #isStopping = false;
  /** Reloads and stops run one after the other. */
  #lastOperation: Promise<unknown> = Promise.resolve();
  /** A reload that has not begun yet. */
  #nextReload: Promise<ReloadResult> | undefined;

  /** Resolves once the daemon listens. @throws {ConfigError} if it cannot run as configured. */
  static async start(config: Config, context: DaemonContext): Promise<Daemon> {
    const { clock = systemClock, log } = context;
    const claim = new SnapshotClaim(context.lock, clock, log);
    await claim.start(config.snapshot?.file);
    try {
      return await Daemon.#startWith(config, context, claim);
    } catch (error) {
      await claim.release();
      throw error;
    }
  }

  static async #startWith(
    config: Config,
    context: DaemonContext,
    claim: SnapshotClaim,
  ): Promise<Daemon> {
    const { clock = systemClock, random = systemRandom, log } = context;
    const loaded = await loadSnapshot(config, clock, log);
    const stored = await loadControls(config, log);
    const seed = fleetHashSeedOf(config) ?? loaded.previous?.seed ?? randomHashSeed(random);
    const hasher = createHasher(seed, 'latin1');
    const backends = await RunningBackends.start(config, { clock, random, log, hasher });
    const components = { clock, seed, hasher, backends, claim };
    let daemon: Daemon | undefined;
    try {
      daemon = new Daemon(config, context, components);
      daemon.#snapshotter.restore(loaded, stored);
      await backends.join();
      await daemon.#joinControls();
      await daemon.#listen(config);
    } catch (error) {
      await releaseResources(backends, daemon ? daemon.#registry.all : []);
      throw error;
    }
    await daemon.#snapshotter.configure(config.snapshot);
    daemon.#denialLog.configure(config.log.denialsMs, config.log.denialKeys);
    daemon.#history.start();
    daemon.#probe.start();
    daemon.router.calls.start();
    return daemon;
  }

  /** Before it listens: a daemon without the bans of its fleet would allow banned keys. */
  async #joinControls(): Promise<void> {
    if (await this.#controlSharing.join()) return;
    this.#log('warn', 'bans and overrides of the peers are incomplete; starting nevertheless');
  }

  private constructor(
    config: Config,
    {
      log,
      load,
      file,
      clock,
      random,
      version,
      backends: modules = BACKENDS,
      workers,
    }: DaemonContext,
    components: DaemonComponents,
  ) {
    this.#config = config;
    this.#log = log;
    this.#loadConfig = load;
    this.#file = file;
    this.#clock = components.clock;
    this.#snapshotClaim = components.claim;
    this.#onIgnoredHeader = proxyWarning(log, components.clock);
    const { hasher, backends } = components;
    const { backendFor } = backends;
    this.#backends = backends;
    this.#health = new Health(components.clock);
    if (components.clock === systemClock) this.#health.start();
    this.#overload = new Overload(components.clock, overloadOf(config, components.clock));
    this.#overloadLog = new OverloadLog(log, components.clock, this.#overload);
    const batchedClock = batchClock(components.clock);
    this.#registry = new LimiterRegistry({ hasher, batchClock: batchedClock, clock, backendFor });
    this.#logChangesOf(this.#registry.apply(config.limits).created);
    this.#controlJournal = new ControlJournal({
      clock: components.clock,
      log,
      records: () => this.controls.records,
    });
    this.controls = new Controls({
      clock: components.clock,
      log,
      registry: this.#registry,
      limits: () => this.#config.limits,
      onLimitersChanged: () => this.#metrics.refresh(),
      share: (records) => this.#controlSharing.send(records),
      sharingProblemOf: (record) => this.#controlSharing.problemOf(record),
      journal: this.#controlJournal,
    });
    const { clock: sharingClock } = components;
    this.#controlSharing = new ControlSharing(sharingClock, this.controls, backends.channels);
    const router = new Router(
      config,
      this.#registry,
      hasher,
      random,
      new DenialRecorder(batchedClock),
      this.controls,
      new CallRecorder(batchedClock, random),
    );
    this.controls.attach(router);
    this.router = router;
    router.permitUse.onUnused = (limit) => log('warn', NO_PERMITS, { limit });
    const bounds = () => this.#config.bounds;
    const turns = new Turns(components.clock, this.#overload);
    router.overload = this.#overload;
    const line = lineProtocol(router.isAllowed.bind(router), () => bounds().maxKey);
    this.#lineConnections = new Connections(line, bounds, batchedClock, turns);
    const { maxThrottleKeys: maxKeys, maxThrottleMs: maxToleranceMs } = config.bounds;
    this.#gcraTable = new GcraTable({ hasher, maxKeys, maxToleranceMs, clock: batchedClock });
    const resp = respProtocol({
      router,
      gcraTable: this.#gcraTable,
      version,
      clock: components.clock,
      clients: () => this.#respConnections.counts.open,
      password: () => this.#config.resp.password,
      controls: this.controls,
      adminToken: () => this.#config.admin.token,
      bounds: () => ({ ...RESP_BOUNDS, maxKeyBytes: bounds().maxKey }),
    });
    this.#respConnections = new Connections(resp, bounds, batchedClock, turns);
    this.#history = new History({
      clock: components.clock,
      router,
      hasher,
      denials: router.denials,
      limits: () => this.#config.limits,
      learntKeys: (limiter) => this.#metrics.keysOf(limiter),
    });
    const probe = new BackendProbe(components.clock, () => this.#registry.all);
    this.#probe = probe;
    this.#httpServer = new HttpServer(
      {
        router,
        version,
        clock: batchedClock,
        turns,
        metrics: () => this.#metrics.text(),
        reload: async () => (file === undefined ? reloadFailure([NO_FILE]) : this.reload()),
        controls: this.controls,
        isReady: () => !this.#isStopping,
        readiness: () => this.#readiness(),
        probeBackends: () => {
          const probed = probe.run();
          // A frozen server delays no answer that does not depend on it.
          return this.#config.ready.needsBackends ? probed : Promise.resolve();
        },
        backendPages: backends.pagesOf(modules),
        limits: () => describeLimits(this.#config.limits, this.#registry),
        history: this.#history,
        config: () => describeConfig(this.#config, file),
        onError: (error) => log('error', 'HTTP request failed', { reason: errorMessageOf(error) }),
      },
      httpSettingsOf(config, this.#onIgnoredHeader),
    );
    const snapshotContext = { seed: components.seed, clock: components.clock, log };
    this.#snapshotter = new Snapshotter(this.#registry, this.#gcraTable, snapshotContext);
    this.#snapshotter.controls = this.controls;
    this.#snapshotter.journal = this.#controlJournal;
    const sources = {
      line: this.#lineConnections,
      resp: this.#respConnections,
      http: this.#httpServer,
      gcraTable: this.#gcraTable,
      version,
      permits: router.permits,
      waiting: router.waiting,
      overload: this.#overload,
      health: this.#health,
      durations: turns.durations,
      snapshots: this.#snapshotter,
      staticDenials: router.staticDenials,
      controls: this.controls,
      backends,
      workers,
    };
    this.#metrics = new Metrics(sources, this.#registry, () => this.#config.limits);
    const topKeys = topKeysOf(router.denials);
    this.#denialLog = new DenialLog(log, this.#clock, () => this.#denialSources(), topKeys);
    const relay = (accept: Accept): Accept => workers?.relay(accept) ?? accept;
    const protocols: Readonly<Record<string, Accept>> = {
      line: relay((socket) => this.#lineConnections.accept(socket)),
      resp: relay((socket) => this.#respConnections.accept(socket)),
      http: relay((socket, listen) => this.#httpServer.accept(socket, isLoopback(listen))),
    };
    const ofBackends = backends.acceptors(() => bounds().maxConnections);
    const paused = workers ? Object.keys(protocols) : [];
    this.#listeners = new Listeners({ ...protocols, ...ofBackends }, paused);
  }

  get addresses(): readonly ProtocolAddress[] {
    return this.#listeners.addresses;
  }

  get config(): Config {
    return this.#config;
  }

  /** Reads the configuration again and applies it. With a mistake in it, nothing changes. */
  reload(): Promise<ReloadResult> {
    // One that waits for its turn reads the file later than this call: a flood of calls causes two reloads.
    this.#nextReload ??= this.#serialize(async () => {
      this.#nextReload = undefined;
      const loaded = await this.#loadConfig();
      const result =
        'problems' in loaded
          ? reloadFailure(loaded.problems)
          : await this.#applyConfig(loaded.config).catch((error) =>
              reloadFailure([errorMessageOf(error)]),
            );
      this.#metrics.countReload(result.ok);
      if (result.ok) {
        const { limits, kept } = result;
        const changes = describeChanges(result);
        this.#log('info', 'reloaded', { limits, kept, ...(changes !== undefined && { changes }) });
      } else {
        // The log has one line for all problems: without the excerpts of the file.
        const problems = result.problems.map((problem) => problem.split('\n', 1)[0]).join('; ');
        this.#log('error', 'reload failed, the last valid configuration stays', { problems });
      }
      return result;
    });
    return this.#nextReload;
  }

  async #applyConfig(config: Config): Promise<ReloadResult> {
    if (this.#isStopping) return reloadFailure(['the daemon is stopping']);
    const changed = changedSections(this.#config, config);
    if (changed.length > 0) {
      const hint = 'that takes a restart; with a snapshot no state is lost';
      return reloadFailure(changed.map((section) => `\`${section}\` has changed: ${hint}`));
    }
    const { opened, closed, limiters, routes } = await this.#prepareChange(config);
    const known = new Set(this.#registry.all.map(({ name }) => name));
    const { created } = limiters;
    const unconverted = await this.#registry.changeRemote(limiters);
    await backgroundIdle(); // a change of a rule that follows another one moves the rest of its keys at once
    await this.#snapshotter.idle(); // it reads the keys of all rules, in slices
    await nextTurn();
    this.#denialLog.flush(); // removed limiters take their counts with them
    const isRemote = (name: string): boolean =>
      [this.#registry.get(name), limiters.entries.get(name)].every(
        (entry) => entry?.limiter.isRemote,
      );
    const moved = movedBetweenServers(this.#config.limits, config.limits, isRemote);
    const removed = this.#registry.commit(limiters);
    const restarted = [...limiters.restarted, ...moved];
    const warnings: readonly ReloadWarning[] = [
      ...[...unconverted].map((limit) => ({ limit, warning: UNCONVERTED })),
      ...restartWarnings(restarted, this.#config.limits, config.limits),
    ];
    for (const { limit, warning } of warnings) this.#log('warn', warning, { limit });
    const changes = changesOf(this.#config.limits, config.limits);
    this.#config = config;
    this.router.applyConfig(config, routes);
    this.#overload.config = overloadOf(config, this.#clock);
    this.controls.applyConfig();
    this.#httpServer.configure(httpSettingsOf(config, this.#onIgnoredHeader));
    this.#metrics.refresh();
    await nextTurn();
    this.#logChangesOf(created);
    this.#probe.start();
    for (const entry of removed) this.#stopDecreaseLog(entry);
    await this.#snapshotter.configure(config.snapshot);
    await this.#snapshotClaim.commit();
    this.#denialLog.configure(config.log.denialsMs, config.log.denialKeys);
    for (const listener of closed)
      this.#log('info', 'no longer listening', listenerFields(listener));
    for (const listener of opened) this.#log('info', 'listening', listenerFields(listener));
    await closeLimiters(removed);
    this.#backends.closeUnusedConnections(config);
    const limits = config.limits.length;
    const isAnew = ({ name }: LimiterEntry): boolean =>
      isLimitName(name) && (!known.has(name) || restarted.includes(name));
    const kept = limits - created.filter(isAnew).length;
    return { ok: true, file: this.#file, limits, kept, warnings, ...changes };
  }

  /** Everything that can fail: creates limiters, then changes listeners. A failure undoes all of it. */
  async #prepareChange(
    config: Config,
  ): Promise<ListenerChange & { readonly limiters: RegistryChange; readonly routes: RouteIndex }> {
    let created: readonly LimiterEntry[] = [];
    try {
      await this.#snapshotClaim.prepare(config.snapshot?.file);
      await this.#backends.prepare(config);
      await nextTurn();
      const limiters = await runInSlices(this.#registry.prepare(config.limits));
      created = limiters.created;
      await nextTurn();
      const routes = await runInSlices(indexRoutes(config));
      await nextTurn();
      return { ...(await this.#listen(config)), limiters, routes };
    } catch (error) {
      await this.#snapshotClaim.abort();
      await closeLimiters(created);
      this.#backends.closeUnusedConnections(this.#config);
      throw error;
    }
  }

  async #listen(config: Config): Promise<ListenerChange> {
    const changed = await this.#listeners.change(listenAddressesOf(config));
    const open = config.listen.http.find((address) => !isLoopback(address));
    if (open && config.admin.token === undefined) {
      const at = formatListenAddress(open);
      this.#log('warn', 'admin pages are off without a token: set admin.token', { at });
    }
    return changed;
  }

  /** Stops listening, answers pending requests, leaves its backends and writes a snapshot. */
  stop(): Promise<void> {
    this.#isStopping = true;
    return this.#serialize(async () => {
      this.#snapshotter.stopSaving();
      await this.#listeners.close();
      await new Promise<void>((resolve) => {
        schedule(this.#clock, this.#clock.now() + SHUTDOWN_GRACE_MS, resolve, true);
      });
      const { drainMs } = this.#config.bounds;
      this.router.waiting.stop(this.#clock, drainMs);
      const protocols = [this.#lineConnections, this.#respConnections, this.#httpServer];
      await Promise.all(protocols.map((protocol) => protocol.drain(drainMs)));
      this.#denialLog.stop();
      this.#overloadLog.stop();
      this.#health.stop();
      this.#history.stop();
      this.#probe.stop();
      this.router.calls.stop();
      this.controls.close();
      this.#controlSharing.close();
      for (const entry of [...this.#decreaseLogs.keys()]) this.#stopDecreaseLog(entry);
      await this.#backends.leave();
      await this.#snapshotter.save();
      await this.#controlJournal.close();
      await this.#snapshotClaim.release();
      await releaseResources(this.#backends, this.#registry.all);
    });
  }

  #readiness(): Readiness {
    const unavailable = unavailableLimits(this.#registry.all, shadowTest(this.#config.limits));
    const isBlocked = this.#config.ready.needsBackends && unavailable.length > 0;
    return {
      isStopping: this.#isStopping,
      isOverloaded: this.#overload.isRecent,
      isBlocked,
      unavailable,
    };
  }

  #stopDecreaseLog(entry: LimiterEntry): void {
    this.#decreaseLogs.get(entry)?.();
    this.#decreaseLogs.delete(entry);
  }

  #denialSources(): DenialSource[] {
    const isShadow = shadowTest(this.#config.limits);
    const limits = this.#registry.all.map(({ name, limiter }) => ({
      id: `limit ${name}`,
      fields: { limit: name, ...(isShadow(name) && { shadow: true }) },
      denied: limiter.denied,
      isShadow: isShadow(name),
    }));
    const lists = Object.entries(this.router.staticDenials).map(([reason, denied]) => ({
      id: `reason ${reason}`,
      fields: { reason },
      denied,
    }));
    const reason = 'overload';
    const shed = { id: `reason ${reason}`, fields: { reason }, denied: this.#overload.deniedCount };
    const { denied } = this.#gcraTable;
    const command = { id: 'command', fields: { command: 'CL.THROTTLE' }, denied };
    return [...limits, ...lists, shed, command];
  }

  #serialize<T>(operation: () => Promise<T>): Promise<T> {
    const done = this.#lastOperation.then(operation);
    this.#lastOperation = done.catch(() => undefined);
    return done;
  }

  /** Logs when back-pressure decreases a limit, and when its backend becomes unavailable or available. */
  #logChangesOf(created: readonly LimiterEntry[]): void {
    for (const entry of created) {
      const { name: limit, limiter } = entry;
      if (limiter instanceof SyncLimiter) {
        if (learns(limiter)) this.#decreaseLogs.set(entry, logDecreases(limiter, this.#log));
        continue;
      }
      limiter.on((event) => {
        if (event.type !== 'availability') return;
        const { isAvailable, onUnavailable = '' } = event;
        if (isAvailable) return this.#log('info', 'limit available again', { limit });
        const reason = errorMessageOf(event.reason);
        this.#log('warn', 'limit unavailable', { limit, onUnavailable, reason });
      });
    }
  }
}

/** True for a limit that may move: a listener on any other one would only slow it down. */
const learns = (limiter: SyncLimiter): boolean => limiter.inspect('').limit !== undefined;

/** Logs decreases by back-pressure at a bounded rate. The returned function logs what is pending. */
function logDecreases(limiter: SyncLimiter, log: Log): () => void {
  const round = (limit = 0): number => Math.round(limit * 100) / 100;
  const warn = (_message: string, fields: LimitingFields): void =>
    log('warn', 'limit decreased by back-pressure', {
      limit: fields.limit,
      key: toKeyText(fields.key),
      from: fields.from === UNLIMITED ? 'unlimited' : round(fields.from),
      to: round(fields.to),
      ...(fields.pacePerSecond !== undefined && { pace: round(fields.pacePerSecond) }),
      cause: fields.cause ?? '',
      times: fields.decreased,
    });
  return logLimiting(limiter, { warn }, { events: ['decreased'] });
}

/** With the clock of a test, the age of a question is not known. */
const overloadOf = ({ overload }: Config, clock: Clock): OverloadConfig =>
  clock === systemClock ? overload : NO_SHEDDING;

/** Closes everything that keeps the process alive. */
async function releaseResources(
  backends: RunningBackends,
  limiters: readonly LimiterEntry[],
): Promise<void> {
  await backends.leave();
  await closeLimiters(limiters);
  backends.closeUnusedConnections(undefined);
}

const listenerFields = ({ protocol, listen }: ProtocolAddress) => ({
  protocol,
  at: formatListenAddress(listen),
});

const reloadFailure = (problems: readonly string[]): ReloadResult => ({ ok: false, problems });

const httpSettingsOf = (
  { admin, http, bounds }: Config,
  onIgnoredHeader: (ignored: IgnoredHeader) => void,
): HttpSettings => ({
  admin,
  extractKey: createKeyExtractor(http, onIgnoredHeader),
  fastPath: http.fastPath,
  allowCrossSite: http.allowCrossSite,
  bounds,
});
