/**
 * The interface between a backend and the programs that run it: the daemon, its configuration and the CLI.
 *
 *     BackendModule    one per backend: its name, how its configuration is read, its admin page, its overrides
 *      └ BackendSection    its section of one configuration: starts the backend, names its listeners and servers
 *         └ RunningBackend     the backend inside a daemon: creates limits, view, metrics, close
 *      └ LimitBackend      its use by one limit: dry run, identity, factory
 *
 * The daemon's registry lists the modules. All other code iterates over that list and names no backend.
 */

import type { Socket } from 'node:net';
import type { Clock } from '../core/clock.ts';
import type { Hasher, HashSeed } from '../core/hash.ts';
import type { ListenAddress } from '../core/listen-address.ts';
import type { Log } from '../core/log.ts';
import type { MetricFamily } from '../core/metric-family.ts';
import type { Random } from '../core/random.ts';
import type { BackendFactory } from './backend.ts';
import type { ServerUse, SharedConnections } from './connections/shared-connections.ts';
import type { RemoteBackendFactory } from './remote-backend.ts';

export type AnyBackendFactory = BackendFactory | RemoteBackendFactory;

export interface BackendModule {
  /** Names the section, the field of a limit, the admin page and the CLI command. */
  readonly name: string;
  /** Reads the section; the field of a limit is then `true` or `false`. @throws {ConfigError} */
  readSection?(value: unknown, path: string): BackendSection;
  /** Reads the field of a limit that carries all options itself. @throws {ConfigError} */
  readLimit?(value: unknown, path: string): LimitBackend;
  /** Set if it wraps the deciding backend: the backends that it cannot wrap. */
  readonly wrapper?: { readonly excludes: readonly string[] };
  readonly page?: BackendPage;
  readonly overrides?: readonly SectionOverride[];
}

export interface BackendSection {
  /** Use of this backend by every limit. */
  readonly limit: LimitBackend;
  /** Compared on reload: a change of the identity requires a restart. */
  readonly identity: string;
  /** Also applies to limits that name no backend, if their rule can be shared in this way. */
  readonly isDefault?: boolean;
  /** Set if several daemons have to compute equal key hashes. */
  readonly hashSeed?: HashSeed;
  readonly servers?: readonly ServerUse[];
  readonly listener?: BackendListener;
  /** @throws {ConfigError} if it cannot run as configured, for example without a required package. */
  start(context: BackendStartContext): Promise<RunningBackend>;
}

/** Addresses that the daemon listens on for a backend. */
export interface BackendListener {
  readonly addresses: readonly ListenAddress[];
  /** An example request: its path, and flags for curl. */
  readonly example: { readonly path: string; readonly flags: string };
}

export interface LimitBackend {
  readonly name: string;
  /** Part of a limiter's fingerprint: another identity means another limiter. */
  readonly identity: string;
  /** Shown by `GET /limits`; without secrets. */
  readonly view: unknown;
  /** Added by `explain`, such as "shared through Redis". */
  readonly note?: string;
  /** Error for the field if the backend cannot share the rule; undefined: the error of the dry run is reported. */
  readonly unsupported?: string;
  /** True if the clock is read for every decision instead of once per batch. */
  readonly needsExactTime?: boolean;
  readonly servers?: readonly ServerUse[];
  /**
   * Creates a factory for limits that only validate their rule and are never checked. Its backends have the
   * capabilities of the real ones, such as `credit`, because wrappers accept or reject them by these.
   */
  dryRun(inner?: AnyBackendFactory): AnyBackendFactory;
  /** Left out where the section's running backend creates limits. */
  create?(connections: SharedConnections): AnyBackendFactory;
}

export interface BackendStartContext {
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  /** The hasher of all keys, seeded by `hashSeed` where a section has one. */
  readonly hasher: Hasher;
  readonly connections: SharedConnections;
}

/** Sends texts between the daemons of a fleet, best effort. */
export interface FleetChannel {
  /** Sends to one daemon, or to all. */
  send(text: string, to?: number): void;
  onText: ((text: string, from: number) => void) | undefined;
  /** Called when this daemon resumes after a suspension. Calls are refused until the promise settles, or a bound. */
  onResume?: (() => Promise<unknown>) | undefined;
  /** The other daemons, longest-running first. */
  peers(): readonly number[];
  /** The name that a daemon reports for itself. */
  nameOf?(id: number): string | undefined;
}

export interface RunningBackend {
  /** The factory for a limit; a wrapper gets the factory of the backend that it wraps, if there is one. */
  createFactory(inner?: AnyBackendFactory): AnyBackendFactory;
  readonly channel?: FleetChannel;
  /** Called once all limits exist, before the daemon listens. */
  join?(): Promise<void>;
  /** True while its limits refuse calls, because this daemon has not received the state of its fleet yet. */
  isJoining?(): boolean;
  /** The admin page as JSON. */
  view(): unknown;
  metrics(): readonly MetricFamily[];
  /** Accepts a connection to one of `listener.addresses`. */
  accept?(socket: Socket, maxConnections: number): void;
  /** May be called twice. */
  close(): void | Promise<void>;
}

/** `GET /<name>`, and the command `sluice <name>` that prints it. */
export interface BackendPage {
  /** Summary in a few words. */
  readonly summary: string;
  /** Description for `--help`. */
  readonly description: string;
  /** The JSON of a daemon without this backend; has no `id`. */
  readonly emptyView: object;
  /** Text that the command prints for `emptyView`. */
  readonly emptyMessage: string;
  /** Lines and tables; the CLI aligns columns and replaces control characters. */
  render(view: unknown): readonly (string | TextTable)[];
}

/** Rows of cells, the header first. */
export type TextTable = readonly (readonly string[])[];

/** A field of the section that an environment variable or a flag of `serve` sets. */
export interface SectionOverride {
  readonly field: string;
  readonly variable: string;
  readonly flag?: { readonly name: string; readonly help: string };
  /** `list`: separated by commas; `addresses`: a list, in which `off` removes the section. */
  readonly kind: 'text' | 'list' | 'addresses';
}
