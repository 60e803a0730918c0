/**
 *     section ── start ─▶ running backend ─┐
 *     limit   ── create ──────────────────┴─▶ factory ── wrapped by the next backend of the limit ─▶ limiter
 */

import { type ServerUse, SharedConnections } from '../backends/connections/shared-connections.ts';
import type {
  AnyBackendFactory,
  BackendModule,
  BackendSection,
  BackendStartContext,
  FleetChannel,
  RunningBackend,
} from '../backends/daemon-backend.ts';
import type { HashSeed } from '../core/hash.ts';
import type { MetricFamily } from '../core/metric-family.ts';
import type { LimitConfig } from './config/limits.ts';
import type { Config } from './config/read.ts';
import type { BackendPageView } from './protocols/http/admin-routes.ts';
import type { BackendSelector } from './router/limiter-registry.ts';
import type { Accept } from './server/listeners.ts';

export class RunningBackends {
  readonly #connections: SharedConnections;
  readonly #running = new Map<string, RunningBackend>();

  /** @throws {ConfigError} if one cannot run as configured. */
  static async start(
    config: Config,
    context: Omit<BackendStartContext, 'connections'>,
  ): Promise<RunningBackends> {
    const connections = new SharedConnections(context.log);
    const backends = new RunningBackends(connections);
    await backends.prepare(config);
    try {
      for (const [name, section] of config.backends) {
        backends.#running.set(name, await section.start({ ...context, connections }));
      }
    } catch (error) {
      await backends.leave();
      backends.closeUnusedConnections(undefined);
      throw error;
    }
    return backends;
  }

  private constructor(connections: SharedConnections) {
    this.#connections = connections;
  }

  /** The factory for a limit, wrapped from the first backend to the last; undefined: the limit is local. */
  readonly backendFor: BackendSelector = ({ backends }) =>
    backends.reduce<AnyBackendFactory | undefined>(
      (inner, { name, create }) =>
        create?.(this.#connections) ?? this.#running.get(name)?.createFactory(inner),
      undefined,
    );

  /** Loads packages that the limits of a configuration need. @throws {ConfigError} if one is missing. */
  prepare(config: Config): Promise<void> {
    return this.#connections.prepare(serversOf(config));
  }

  /** Closes connections that a configuration does not need; without one, all of them. */
  closeUnusedConnections(config: Config | undefined): void {
    this.#connections.closeUnused(config ? serversOf(config) : []);
  }

  /** Channels that carry texts to other daemons. */
  get channels(): readonly FleetChannel[] {
    return [...this.#running.values()].flatMap(({ channel }) => channel ?? []);
  }

  /** True if a backend that carries texts to other daemons shares the limit. */
  readonly isShared = ({ backends }: Pick<LimitConfig, 'backends'>): boolean =>
    backends.some(({ name }) => this.#running.get(name)?.channel !== undefined);

  async join(): Promise<void> {
    for (const backend of this.#running.values()) await backend.join?.();
  }

  get isJoining(): boolean {
    return [...this.#running.values()].some((backend) => backend.isJoining?.());
  }

  /** Leaves: wrappers first, as they use the backends that they wrap. */
  async leave(): Promise<void> {
    const running = [...this.#running.values()].reverse();
    await Promise.all(running.map((backend) => backend.close()));
  }

  /** Functions that accept connections to the listeners of backends, by protocol. */
  acceptors(maxConnections: () => number): Readonly<Record<string, Accept>> {
    return Object.fromEntries(
      [...this.#running].map(([name, backend]) => [
        name,
        ((socket) => backend.accept?.(socket, maxConnections())) satisfies Accept,
      ]),
    );
  }

  metrics(): readonly MetricFamily[] {
    return [...this.#running.values()].flatMap((backend) => backend.metrics());
  }

  /** The admin pages of all backends, also of those that are not configured. */
  pagesOf(modules: readonly BackendModule[]): readonly BackendPageView[] {
    return modules.flatMap(({ name, page }) => {
      if (!page) return [];
      const view = (): unknown => this.#running.get(name)?.view() ?? page.emptyView;
      return [{ name, summary: page.summary, view }];
    });
  }
}

const serversOf = ({ backends, limits }: Config): readonly ServerUse[] =>
  [...backends.values(), ...limits.flatMap((limit) => limit.backends)].flatMap(
    ({ servers = [] }) => servers,
  );

/** The seed that a fleet of daemons has in common; undefined: this daemon hashes keys for itself. */
export const fleetHashSeedOf = ({ backends }: Pick<Config, 'backends'>): HashSeed | undefined =>
  [...backends.values()].find(({ hashSeed }) => hashSeed)?.hashSeed;

/** Names of sections that a reload cannot change: backends and workers do not restart while the daemon runs. */
export function changedSections(before: Config, after: Config): string[] {
  const names = new Set([...before.backends.keys(), ...after.backends.keys()]);
  const identity = (section: BackendSection | undefined) => section?.identity;
  const changed = [...names].filter(
    (name) => identity(before.backends.get(name)) !== identity(after.backends.get(name)),
  );
  return before.workers === after.workers ? changed : [...changed, 'workers'];
}
