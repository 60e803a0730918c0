import { type Millis, schedule, systemClock } from '../core/clock.ts';
import { errorMessageOf } from '../core/errors.ts';
import { createHasher, randomHashSeed } from '../core/hash.ts';
import { systemRandom } from '../core/random.ts';
import { type ComponentsContext, DaemonComponents, type Prerequisites } from './components.ts';
import type { Config } from './config/read.ts';
import type { Controls } from './control/controls.ts';
import type { ReloadResult } from './protocols/http/admin-routes.ts';
import { applyConfig, reloadFailure } from './reload.ts';
import { describeChanges } from './reload-changes.ts';
import { closeLimiters, type LimiterEntry } from './router/limiter-registry.ts';
import type { Router } from './router/router.ts';
import { fleetHashSeedOf, RunningBackends } from './running-backends.ts';
import type { ProtocolAddress } from './server/listeners.ts';
import { type FileLocker, SnapshotClaim } from './snapshot-claim.ts';
import { loadControls, loadSnapshot } from './snapshotter.ts';

/** A configuration, or its mistakes as text. */
type ConfigLoad = { readonly config: Config } | { readonly problems: readonly string[] };

export interface DaemonContext extends ComponentsContext {
  readonly load: () => ConfigLoad | Promise<ConfigLoad>;
  /** Locks the snapshot file against other daemons; without it, several may use one. */
  readonly lock?: FileLocker | undefined;
}

/**
 * The response to `POST /reload` without a file: success would mean that a file is in use. SIGHUP still opens removed
 * sockets.
 */
const NO_FILE =
  'the daemon was started without a configuration file, so nothing can be read again: start it with --config FILE';

/** How long a stopping daemon goes on answering: requests may still be on their way. */
const SHUTDOWN_GRACE_MS: Millis = 50;

export class Daemon {
  readonly #components: DaemonComponents;
  readonly #loadConfig: DaemonContext['load'];
  readonly #file: string | undefined;
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
    snapshotClaim: SnapshotClaim,
  ): Promise<Daemon> {
    const { clock = systemClock, random = systemRandom, log } = context;
    const loaded = await loadSnapshot(config, clock, log);
    const stored = await loadControls(config, log);
    const seed = fleetHashSeedOf(config) ?? loaded.previous?.seed ?? randomHashSeed(random);
    const hasher = createHasher(seed, 'latin1');
    const backends = await RunningBackends.start(config, { clock, random, log, hasher });
    const prerequisites = { clock, seed, hasher, backends, snapshotClaim };
    let daemon: Daemon | undefined;
    try {
      daemon = new Daemon(config, context, prerequisites);
      daemon.#components.snapshotter.restore(loaded, stored);
      await backends.join();
      await daemon.#joinControls();
      await daemon.#components.listen(config);
    } catch (error) {
      await releaseResources(backends, daemon ? daemon.#components.registry.all : []);
      throw error;
    }
    await daemon.#components.snapshotter.configure(config.snapshot);
    daemon.#components.denialLog.configure(config.log.denialsMs, config.log.denialKeys);
    daemon.#components.history.start();
    daemon.#components.probe.start();
    daemon.router.calls.start();
    return daemon;
  }

  /** Before it listens: a daemon without the bans of its fleet would allow banned keys. */
  async #joinControls(): Promise<void> {
    const { controlSharing, log } = this.#components;
    if (await controlSharing.join()) return;
    log('warn', 'bans and overrides of the peers are incomplete; starting nevertheless');
  }

  private constructor(config: Config, context: DaemonContext, prerequisites: Prerequisites) {
    this.#loadConfig = context.load;
    this.#file = context.file;
    this.#components = new DaemonComponents(config, context, prerequisites, async () =>
      this.#file === undefined ? reloadFailure([NO_FILE]) : this.reload(),
    );
  }

  get addresses(): readonly ProtocolAddress[] {
    return this.#components.listeners.addresses;
  }

  get config(): Config {
    return this.#components.config;
  }

  get controls(): Controls {
    return this.#components.controls;
  }

  get router(): Router {
    return this.#components.router;
  }

  /** Reads the configuration again and applies it. With a mistake in it, nothing changes. */
  reload(): Promise<ReloadResult> {
    const { log, metrics } = this.#components;
    // One that waits for its turn reads the file later than this call: a flood of calls causes two reloads.
    this.#nextReload ??= this.#serialize(async () => {
      this.#nextReload = undefined;
      const loaded = await this.#loadConfig();
      const result =
        'problems' in loaded
          ? reloadFailure(loaded.problems)
          : await applyConfig(this.#components, loaded.config, this.#file).catch((error) =>
              reloadFailure([errorMessageOf(error)]),
            );
      metrics.countReload(result.ok);
      if (result.ok) {
        const { limits, kept } = result;
        const changes = describeChanges(result);
        log('info', 'reloaded', { limits, kept, ...(changes !== undefined && { changes }) });
      } else {
        // The log has one line for all problems: without the excerpts of the file.
        const problems = result.problems.map((problem) => problem.split('\n', 1)[0]).join('; ');
        log('error', 'reload failed, the last valid configuration stays', { problems });
      }
      return result;
    });
    return this.#nextReload;
  }

  /** Stops listening, answers pending requests, leaves its backends and writes a snapshot. */
  stop(): Promise<void> {
    const components = this.#components;
    const { clock } = components;
    components.isStopping = true;
    return this.#serialize(async () => {
      components.snapshotter.stopSaving();
      await components.listeners.close();
      await new Promise<void>((resolve) => {
        schedule(clock, clock.now() + SHUTDOWN_GRACE_MS, resolve, true);
      });
      const { drainMs } = components.config.bounds;
      components.router.waiting.stop(clock, drainMs);
      const { lineConnections, respConnections, httpServer } = components;
      const protocols = [lineConnections, respConnections, httpServer];
      await Promise.all(protocols.map((protocol) => protocol.drain(drainMs)));
      components.denialLog.stop();
      components.overloadLog.stop();
      components.health.stop();
      components.history.stop();
      components.probe.stop();
      components.router.calls.stop();
      components.controls.close();
      components.controlSharing.close();
      components.limitLog.stop();
      await components.backends.leave();
      await components.snapshotter.save();
      await components.controlJournal.close();
      await components.snapshotClaim.release();
      await releaseResources(components.backends, components.registry.all);
    });
  }

  #serialize<T>(operation: () => Promise<T>): Promise<T> {
    const done = this.#lastOperation.then(operation);
    this.#lastOperation = done.catch(() => undefined);
    return done;
  }
}

/** Closes everything that keeps the process alive. */
async function releaseResources(
  backends: RunningBackends,
  limiters: readonly LimiterEntry[],
): Promise<void> {
  await backends.leave();
  await closeLimiters(limiters);
  backends.closeUnusedConnections(undefined);
}
