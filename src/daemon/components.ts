/**
 *     line ─┐                                         ┌─ local limiters, their state in tables
 *     RESP ─┼─▶ protocol handlers ─▶ router ─▶ limits ┤
 *     HTTP ─┘                                         └─ limiters on a backend
 *
 * Creating components opens no socket. `daemon.ts` starts and stops them, `reload.ts` changes their configuration.
 */

import type { BackendModule } from '../backends/daemon-backend.ts';
import { GcraTable } from '../backends/local/gcra-table.ts';
import { TableMemory } from '../backends/local/table.ts';
import { type BatchClock, batchClock, type Clock, systemClock } from '../core/clock.ts';
import { errorMessageOf } from '../core/errors.ts';
import type { Hasher, HashSeed } from '../core/hash.ts';
import { formatListenAddress, isLoopback } from '../core/listen-address.ts';
import type { Log } from '../core/log.ts';
import type { Random } from '../core/random.ts';
import { BackendProbe, unavailableLimits } from './backend-probe.ts';
import { BACKENDS } from './backends/registry.ts';
import { CallRecorder } from './calls/call-recorder.ts';
import { MEMORY } from './config/memory.ts';
import type { OverloadConfig } from './config/overload.ts';
import { type Config, listenAddressesOf } from './config/read.ts';
import { shadowTest } from './config/shadow.ts';
import { type OperatorKey, operatorKeyOf } from './control/control-auth.ts';
import { ControlJournal } from './control/control-journal.ts';
import { ControlSharing } from './control/control-sharing.ts';
import { Controls } from './control/controls.ts';
import { DenialLog, type DenialSource, topKeysOf } from './denials/denial-log.ts';
import { DenialRecorder } from './denials/denial-recorder.ts';
import { describeConfig } from './effective-config.ts';
import { Health } from './health.ts';
import { History } from './history/history.ts';
import { LimitLog } from './limit-log.ts';
import { describeLimits, Metrics } from './metrics.ts';
import type { ReloadResult } from './protocols/http/admin-routes.ts';
import { createKeyExtractor } from './protocols/http/key.ts';
import { type IgnoredHeader, proxyWarning } from './protocols/http/proxy-warning.ts';
import type { Readiness } from './protocols/http/readiness.ts';
import { HttpServer, type HttpSettings } from './protocols/http/server/server.ts';
import { lineProtocol } from './protocols/line/handler.ts';
import { respProtocol } from './protocols/resp/handler.ts';
import { RESP_BOUNDS } from './protocols/resp/parser.ts';
import { LimiterRegistry } from './router/limiter-registry.ts';
import type { RouteIndex } from './router/route-index.ts';
import { Router } from './router/router.ts';
import type { RunningBackends } from './running-backends.ts';
import { Connections } from './server/connections.ts';
import { type Accept, type ListenerChange, Listeners } from './server/listeners.ts';
import { NO_SHEDDING, Overload } from './server/overload.ts';
import { OverloadLog } from './server/overload-log.ts';
import { Turns } from './server/turns.ts';
import type { SnapshotClaim } from './snapshot-claim.ts';
import { Snapshotter } from './snapshotter.ts';
import type { WorkerPool } from './workers/worker-pool.ts';

export interface ComponentsContext {
  readonly log: Log;
  /** The absolute path of the file that holds the configuration. */
  readonly file?: string | undefined;
  readonly version: string;
  /** Defaults to all backends of this package. */
  readonly backends?: readonly BackendModule[];
  readonly clock?: Clock;
  readonly random?: Random;
  /** Processes that do the input and output of connections. */
  readonly workers?: Pick<WorkerPool, 'relay' | 'metrics'> | undefined;
}

/** Created before the components: the seed may come from a snapshot, and limiters need their backends. */
export interface Prerequisites {
  readonly clock: Clock;
  readonly seed: HashSeed;
  readonly hasher: Hasher;
  readonly backends: RunningBackends;
  readonly snapshotClaim: SnapshotClaim;
}

/** Warning about a limit that needs settling, while no client takes a permit of it. */
const NO_PERMITS =
  'checks of this limit take no permit, so it limits nothing: check with HOLD (RESP) or hold=1 (HTTP) and settle the permit';

export class DaemonComponents {
  readonly log: Log;
  readonly clock: Clock;
  readonly backends: RunningBackends;
  readonly registry: LimiterRegistry;
  readonly limitLog: LimitLog;
  readonly controls: Controls;
  readonly controlSharing: ControlSharing;
  readonly controlJournal: ControlJournal;
  readonly router: Router;
  readonly lineConnections: Connections;
  readonly respConnections: Connections;
  readonly httpServer: HttpServer;
  readonly listeners: Listeners;
  readonly metrics: Metrics;
  readonly snapshotter: Snapshotter;
  readonly snapshotClaim: SnapshotClaim;
  readonly denialLog: DenialLog;
  readonly overload: Overload;
  readonly overloadLog: OverloadLog;
  readonly health: Health;
  readonly history: History;
  readonly probe: BackendProbe;
  /** Set when the daemon begins to stop: it is no longer ready. */
  isStopping = false;
  readonly #gcraTable: GcraTable;
  readonly #onIgnoredHeader: (ignored: IgnoredHeader) => void;
  #config: Config;
  #operator: OperatorKey | undefined;
  #sharedLimits: ReadonlySet<string> = new Set();

  constructor(
    config: Config,
    context: ComponentsContext,
    prerequisites: Prerequisites,
    reload: () => Promise<ReloadResult>,
  ) {
    const { log, random, version } = context;
    const { clock, seed, hasher, backends } = prerequisites;
    this.#config = config;
    this.log = log;
    this.clock = clock;
    this.#onIgnoredHeader = proxyWarning(log, clock);
    this.limitLog = new LimitLog(log);
    const { backendFor } = backends;
    this.backends = backends;
    this.snapshotClaim = prerequisites.snapshotClaim;
    this.health = new Health(clock);
    if (clock === systemClock) this.health.start();
    this.overload = new Overload(clock, overloadOf(config, clock));
    this.overloadLog = new OverloadLog(log, clock, this.overload);
    const batchedClock = batchClock(clock);
    const memory = new TableMemory(MEMORY.keys);
    this.registry = new LimiterRegistry({
      hasher,
      batchClock: batchedClock,
      clock: context.clock,
      backendFor,
      memory,
    });
    this.limitLog.add(this.registry.apply(config.limits).created);
    this.#authorize(config);
    const sharing = { operator: () => this.#operator, sharedLimits: () => this.#sharedLimits };
    this.controlJournal = new ControlJournal({
      clock,
      log,
      records: () => this.controls.records,
    });
    this.controls = new Controls({
      clock,
      log,
      registry: this.registry,
      limits: () => this.#config.limits,
      onLimitersChanged: () => this.metrics.refresh(),
      share: (records) => this.controlSharing.send(records),
      sharingProblemOf: (record) => this.controlSharing.problemOf(record),
      journal: this.controlJournal,
      ...sharing,
    });
    this.controlSharing = new ControlSharing(clock, this.controls, backends.channels, sharing);
    const router = new Router(
      config,
      this.registry,
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
    const turns = new Turns(clock, this.overload);
    router.overload = this.overload;
    const line = lineProtocol(router.isAllowed.bind(router), () => bounds().maxKey);
    this.lineConnections = new Connections(line, bounds, batchedClock, turns);
    const { maxThrottleKeys: maxKeys = memory, maxThrottleMs: maxToleranceMs } = config.bounds;
    this.#gcraTable = new GcraTable({ hasher, maxKeys, maxToleranceMs, clock: batchedClock });
    const resp = respProtocol({
      router,
      gcraTable: this.#gcraTable,
      version,
      clock,
      clients: () => this.respConnections.counts.open,
      password: () => this.#config.resp.password,
      controls: this.controls,
      adminToken: () => this.#config.admin.token,
      bounds: () => ({ ...RESP_BOUNDS, maxKeyBytes: bounds().maxKey }),
    });
    this.respConnections = new Connections(resp, bounds, batchedClock, turns);
    this.history = new History({
      clock,
      router,
      hasher,
      denials: router.denials,
      limits: () => this.#config.limits,
      learntKeys: (limiter) => this.metrics.keysOf(limiter),
    });
    this.probe = new BackendProbe(clock, () => this.registry.all);
    this.httpServer = this.#createHttpServer(context, batchedClock, turns, reload);
    const snapshotContext = { seed, clock, log };
    this.snapshotter = new Snapshotter(this.registry, this.#gcraTable, snapshotContext);
    this.snapshotter.controls = this.controls;
    this.snapshotter.journal = this.controlJournal;
    this.metrics = this.#createMetrics(context, turns);
    const topKeys = topKeysOf(router.denials);
    this.denialLog = new DenialLog(log, this.clock, () => this.#denialSources(), topKeys);
    this.listeners = this.#createListeners(context);
  }

  #createHttpServer(
    { log, file, version, backends: modules = BACKENDS }: ComponentsContext,
    clock: BatchClock,
    turns: Turns,
    reload: () => Promise<ReloadResult>,
  ): HttpServer {
    return new HttpServer(
      {
        router: this.router,
        version,
        clock,
        turns,
        metrics: () => this.metrics.text(),
        reload,
        controls: this.controls,
        isReady: () => !this.isStopping,
        readiness: () => this.#readiness(),
        probeBackends: () => {
          const probed = this.probe.run();
          // A server that hangs delays no answer that does not depend on it.
          return this.#config.ready.needsBackends ? probed : Promise.resolve();
        },
        backendPages: this.backends.pagesOf(modules),
        limits: () => describeLimits(this.#config.limits, this.registry),
        history: this.history,
        config: () => describeConfig(this.#config, file),
        onError: (error) => log('error', 'HTTP request failed', { reason: errorMessageOf(error) }),
      },
      httpSettingsOf(this.#config, this.#onIgnoredHeader),
    );
  }

  #createMetrics({ version, workers }: ComponentsContext, turns: Turns): Metrics {
    const sources = {
      line: this.lineConnections,
      resp: this.respConnections,
      http: this.httpServer,
      gcraTable: this.#gcraTable,
      version,
      permits: this.router.permits,
      waiting: this.router.waiting,
      overload: this.overload,
      health: this.health,
      durations: turns.durations,
      snapshots: this.snapshotter,
      staticDenials: this.router.staticDenials,
      controls: this.controls,
      backends: this.backends,
      workers,
    };
    return new Metrics(sources, this.registry, () => this.#config.limits);
  }

  #createListeners({ workers }: ComponentsContext): Listeners {
    const relay = (accept: Accept): Accept => workers?.relay(accept) ?? accept;
    const protocols: Readonly<Record<string, Accept>> = {
      line: relay((socket) => this.lineConnections.accept(socket)),
      resp: relay((socket) => this.respConnections.accept(socket)),
      http: relay((socket, listen) => this.httpServer.accept(socket, isLoopback(listen))),
    };
    const ofBackends = this.backends.acceptors(() => this.#config.bounds.maxConnections);
    const paused = workers ? Object.keys(protocols) : [];
    return new Listeners({ ...protocols, ...ofBackends }, paused);
  }

  /** Which controls peers get, and which ones this daemon accepts from them. */
  #authorize({ admin, limits }: Config): void {
    this.#operator = admin.token === undefined ? undefined : operatorKeyOf(admin.token);
    this.#sharedLimits = new Set(limits.filter(this.backends.isShared).map(({ name }) => name));
  }

  /** The configuration in use. */
  get config(): Config {
    return this.#config;
  }

  /** Every component uses another configuration from now on. */
  useConfig(config: Config, routes: RouteIndex): void {
    this.#config = config;
    this.#authorize(config);
    this.router.applyConfig(config, routes);
    this.overload.config = overloadOf(config, this.clock);
    this.controls.applyConfig();
    this.httpServer.configure(httpSettingsOf(config, this.#onIgnoredHeader));
    this.metrics.refresh();
  }

  /** Opens and closes sockets as configured; all or nothing. */
  async listen(config: Config): Promise<ListenerChange> {
    const changed = await this.listeners.change(listenAddressesOf(config));
    const open = config.listen.http.find((address) => !isLoopback(address));
    if (open && config.admin.token === undefined) {
      const at = formatListenAddress(open);
      this.log('warn', 'admin pages are off without a token: set admin.token', { at });
    }
    return changed;
  }

  #readiness(): Readiness {
    const unavailable = unavailableLimits(this.registry.all, shadowTest(this.#config.limits));
    const isBlocked = this.#config.ready.needsBackends && unavailable.length > 0;
    return {
      isStopping: this.isStopping,
      isOverloaded: this.overload.isRecent,
      isJoining: this.backends.isJoining,
      isBlocked,
      unavailable,
    };
  }

  #denialSources(): DenialSource[] {
    const isShadow = shadowTest(this.#config.limits);
    const limits = this.registry.all.map(({ name, limiter }) => ({
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
    const shed = { id: `reason ${reason}`, fields: { reason }, denied: this.overload.deniedCount };
    const { denied } = this.#gcraTable;
    const command = { id: 'command', fields: { command: 'CL.THROTTLE' }, denied };
    return [...limits, ...lists, shed, command];
  }
}

/** With the clock of a test, the age of a check is not known. */
const overloadOf = ({ overload }: Config, clock: Clock): OverloadConfig =>
  clock === systemClock ? overload : NO_SHEDDING;

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
