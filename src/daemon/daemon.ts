/**
 * The daemon: one a host, asked by many at once, deciding here.
 *
 *     line ─┐                              ┌─ limiters, their counts in tables
 *     RESP ─┼─▶ conversations ─▶ gate ─────┤
 *     HTTP ─┘                              └─ limits that others share
 *
 * It starts from a configuration and what its predecessor left, changes to another configuration while
 * it runs, and stops by answering what was asked and leaving its state to its successor.
 */

import { GcraTable } from '../backends/local/gcra-table.ts';
import { batchClock, type Clock, type Millis, schedule, systemClock } from '../core/clock.ts';
import { errorMessageOf } from '../core/errors.ts';
import { createHasher, type Hasher, type HashSeed, randomHashSeed } from '../core/hash.ts';
import type { Log } from '../core/log.ts';
import { type Random, systemRandom } from '../core/random.ts';
import { SyncLimiter } from '../limiter/sync-limiter.ts';
import { Backends, changedBackendSections } from './backends/backends.ts';
import { fleetSeedFor } from './backends/peers.ts';
import { RedisClients } from './backends/redis-connections.ts';
import type { LoadResult } from './config/file.ts';
import { formatListenAddress, isLoopback, type ListenAddress } from './config/listen.ts';
import type { Config } from './config/read.ts';
import { describeLimits, Metrics } from './metrics.ts';
import { createKeyExtractor } from './protocols/http/key.ts';
import { HttpServer, type HttpSettings } from './protocols/http/server/server.ts';
import { lineProtocol } from './protocols/line/handler.ts';
import { respProtocol } from './protocols/resp/handler.ts';
import { RESP_BOUNDS } from './protocols/resp/parser.ts';
import { closeLimiters, type LimiterEntry, LimiterRegistry } from './router/limiter-registry.ts';
import { Router } from './router/router.ts';
import { Connections } from './server/connections.ts';
import { type ListenerChange, Listeners } from './server/listeners.ts';
import { loadSnapshot, Snapshotter } from './snapshotter.ts';

export type Surface = 'line' | 'resp' | 'http' | 'groups';

export interface DaemonContext {
  readonly log: Log;
  /** Reads the configuration again. */
  readonly load: () => LoadResult;
  /** Of this package. */
  readonly version: string;
  readonly clock?: Clock;
  readonly random?: Random;
}

/** How a reload went: how many limits there are, and how many of them kept their counts. */
export type ReloadResult =
  | { readonly ok: true; readonly limits: number; readonly kept: number }
  | { readonly ok: false; readonly problems: readonly string[] };

/** A stopping daemon goes on answering for so long: what was sent to it may still be on its way. */
const SHUTDOWN_GRACE_MS: Millis = 50;

/** What a daemon is made of besides its configuration. */
interface DaemonComponents {
  readonly clock: Clock;
  readonly seed: HashSeed;
  readonly hasher: Hasher;
  readonly clients: RedisClients;
  readonly backends: Backends;
}

export class Daemon {
  readonly router: Router;
  readonly #log: Log;
  readonly #loadConfig: () => LoadResult;
  readonly #clock: Clock;
  readonly #clients: RedisClients;
  readonly #backends: Backends;
  readonly #registry: LimiterRegistry;
  readonly #lineConnections: Connections;
  readonly #gcraTable: GcraTable;
  readonly #respConnections: Connections;
  readonly #httpServer: HttpServer;
  readonly #metrics: Metrics;
  readonly #listeners: Listeners<Surface>;
  readonly #snapshotter: Snapshotter;
  #config: Config;
  #isStopping = false;
  /** Reloads and stops come one after the other. */
  #lastOperation: Promise<unknown> = Promise.resolve();

  /** Starts one, listening. @throws {ConfigError} if it cannot be as the configuration says. */
  static async start(config: Config, context: DaemonContext): Promise<Daemon> {
    const { clock = systemClock, random = systemRandom, log } = context;
    const previous = await loadSnapshot(config, clock, log);
    const clients = new RedisClients(log);
    await clients.loadPackage(config);
    const { peers } = config;
    const seed = (peers && fleetSeedFor(peers)) ?? previous?.seed ?? randomHashSeed(random);
    const hasher = createHasher(seed);
    const backends = await Backends.create(config, { clock, random, log, clients, hasher });
    const components = { clock, seed, hasher, clients, backends };
    const daemon = new Daemon(config, context, components);
    daemon.#snapshotter.restore(previous);
    try {
      await backends.join();
      await daemon.#listen(config);
    } catch (error) {
      await daemon.#releaseResources();
      throw error;
    }
    await daemon.#snapshotter.configure(config.snapshot);
    return daemon;
  }

  private constructor(
    config: Config,
    { log, load, clock, random, version }: DaemonContext,
    components: DaemonComponents,
  ) {
    this.#config = config;
    this.#log = log;
    this.#loadConfig = load;
    this.#clock = components.clock;
    this.#clients = components.clients;
    this.#backends = components.backends;
    const { peers, pool, groups, backendFor } = components.backends;
    const hasher = components.hasher;
    const batchedClock = batchClock(components.clock);
    this.#registry = new LimiterRegistry({ hasher, batchClock: batchedClock, clock, backendFor });
    this.#logAvailability(this.#registry.apply(config.limits).created);
    const router = new Router(config, this.#registry, hasher, random);
    this.router = router;
    const line = lineProtocol(router.isAllowed.bind(router), () => this.#config.bounds.key);
    this.#lineConnections = new Connections(
      line,
      () => connectionBoundsOf(this.#config),
      batchedClock,
    );
    const maxCells = config.bounds.cells;
    this.#gcraTable = new GcraTable({ hasher, maxKeys: maxCells, clock: batchedClock });
    const resp = respProtocol({
      router,
      gcraTable: this.#gcraTable,
      version,
      clock: components.clock,
      clients: () => this.#respConnections.counts.open,
      token: () => this.#config.resp.password,
      bounds: () => ({ ...RESP_BOUNDS, maxKeyBytes: this.#config.bounds.key }),
    });
    this.#respConnections = new Connections(
      resp,
      () => connectionBoundsOf(this.#config),
      batchedClock,
    );
    this.#httpServer = new HttpServer(
      {
        router,
        version,
        clock: batchedClock,
        metrics: () => this.#metrics.text(),
        reload: () => this.reload(),
        isReady: () => !this.#isStopping,
        routesConfig: () => this.#config,
        peers: () => peers?.view(),
        pool: async () => pool?.status(),
        groups: () => groups?.status(),
        limits: () => describeLimits(this.#config.limits, this.#registry),
        onError: (error) =>
          log('error', 'a request over HTTP failed', { reason: errorMessageOf(error) }),
      },
      httpSettingsOf(config),
    );
    const sources = {
      line: this.#lineConnections,
      resp: this.#respConnections,
      http: this.#httpServer,
      gcraTable: this.#gcraTable,
    };
    this.#metrics = new Metrics(
      { ...sources, version, permits: router.permits, peers, pool, groups },
      this.#registry,
    );
    this.#snapshotter = new Snapshotter(this.#registry, this.#gcraTable, {
      seed: components.seed,
      clock: components.clock,
      log,
    });
    this.#listeners = new Listeners({
      line: (socket) => this.#lineConnections.accept(socket),
      resp: (socket) => this.#respConnections.accept(socket),
      http: (socket, listen) => this.#httpServer.accept(socket, isLoopback(listen)),
      groups: (socket) => groups?.accept(socket, this.#config.bounds.connections),
    });
  }

  /** Where each surface can be reached. */
  get addresses(): readonly { readonly surface: Surface; readonly listen: ListenAddress }[] {
    return this.#listeners.addresses;
  }

  /** What it goes by at the moment. */
  get config(): Config {
    return this.#config;
  }

  /** Reads the configuration again and changes to it; if something is wrong, stays as it is. */
  reload(): Promise<ReloadResult> {
    return this.#serialize(async () => {
      const loaded = this.#loadConfig();
      const result =
        'problems' in loaded
          ? reloadFailure(loaded.problems)
          : await this.#applyConfig(loaded.config).catch((error) =>
              reloadFailure([errorMessageOf(error)]),
            );
      this.#metrics.countReload(result.ok);
      if (result.ok) this.#log('info', 'reloaded', { limits: result.limits, kept: result.kept });
      else {
        // A log has one line for all of it: without the lines of the file that a terminal shows below each.
        const problems = result.problems.map((own) => own.split('\n', 1)[0]).join('; ');
        this.#log('error', 'reload failed, the last good configuration stays', { problems });
      }
      return result;
    });
  }

  async #applyConfig(config: Config): Promise<ReloadResult> {
    if (this.#isStopping) return reloadFailure(['the daemon is stopping']);
    const changed = changedBackendSections(this.#config, config);
    if (changed.length > 0) {
      const why = 'that takes a restart, which a snapshot makes harmless';
      return reloadFailure(changed.map((section) => `\`${section}\` has changed: ${why}`));
    }
    await this.#clients.loadPackage(config);
    const { opened, closed } = await this.#listen(config);
    const { created, removed } = this.#registry.apply(config.limits);
    this.#config = config;
    this.router.applyConfig(config);
    this.#httpServer.configure(httpSettingsOf(config));
    this.#metrics.refresh();
    this.#logAvailability(created);
    await this.#snapshotter.configure(config.snapshot);
    for (const place of closed) this.#log('info', 'no longer listening', listenerFields(place));
    for (const place of opened) this.#log('info', 'listening', listenerFields(place));
    await closeLimiters(removed);
    this.#clients.closeUnused(config);
    const limits = this.#registry.all.length;
    return { ok: true, limits, kept: limits - created.length };
  }

  async #listen({ listen, admin, groups }: Config): Promise<ListenerChange<Surface>> {
    const changed = await this.#listeners.change({ ...listen, groups: groups?.listen ?? [] });
    const open = listen.http.find((own) => !isLoopback(own));
    if (open && admin.token === undefined) {
      const at = formatListenAddress(open);
      this.#log('warn', 'admin pages are off for want of a token: set admin.token', { at });
    }
    return changed;
  }

  /** Answers what was asked, takes nothing more, and leaves its state to its successor. */
  stop(): Promise<void> {
    this.#isStopping = true;
    return this.#serialize(async () => {
      this.#snapshotter.stopSaving();
      await this.#listeners.close();
      await new Promise<void>((resolve) => {
        schedule(this.#clock, this.#clock.now() + SHUTDOWN_GRACE_MS, resolve, true);
      });
      const { drainMs } = this.#config.bounds;
      const surfaces = [this.#lineConnections, this.#respConnections, this.#httpServer];
      await Promise.all(surfaces.map((surface) => surface.drain(drainMs)));
      await this.#backends.leave();
      await this.#snapshotter.save();
      await this.#releaseResources();
    });
  }

  /** Whatever would keep a process alive. */
  async #releaseResources(): Promise<void> {
    await this.#backends.leave();
    await closeLimiters(this.#registry.all);
    this.#clients.closeUnused(undefined);
  }

  #serialize<T>(act: () => Promise<T>): Promise<T> {
    const done = this.#lastOperation.then(act);
    this.#lastOperation = done.catch(() => undefined);
    return done;
  }

  /** Tells when a limit's decider is out of reach, and when it is back. */
  #logAvailability(created: readonly LimiterEntry[]): void {
    for (const { name: limit, limiter } of created) {
      if (limiter instanceof SyncLimiter) continue;
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

const listenerFields = ({ surface, listen }: { surface: Surface; listen: ListenAddress }) => ({
  surface,
  at: formatListenAddress(listen),
});

const reloadFailure = (problems: readonly string[]): ReloadResult => ({ ok: false, problems });

const connectionBoundsOf = ({ bounds }: Config) => ({
  maxConnections: bounds.connections,
  slowMs: bounds.slowMs,
  idleMs: bounds.idleMs,
});

const httpSettingsOf = ({ admin, http, bounds }: Config): HttpSettings => ({
  admin,
  extractKey: createKeyExtractor(http),
  fastPath: http.fastPath,
  bounds: {
    maxKey: bounds.key,
    maxBody: bounds.body,
    maxConnections: bounds.connections,
    slowMs: bounds.slowMs,
    idleMs: bounds.idleMs,
  },
});
