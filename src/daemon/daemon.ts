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

import { Cells } from '../backends/local/gcra-table.ts';
import { alarm, type Clock, heldClock, type Millis, systemClock } from '../core/clock.ts';
import { reasonOf } from '../core/errors.ts';
import { type Hasher, type HashSeed, hasher, hashSeed } from '../core/hash.ts';
import type { Log } from '../core/log.ts';
import { type Random, systemRandom } from '../core/random.ts';
import { Engine } from '../limiter/sync-limiter.ts';
import { Company, changedCompany } from './backends/backends.ts';
import { seedOf } from './backends/peers.ts';
import { RedisClients } from './backends/redis-connections.ts';
import type { Loaded } from './config/file.ts';
import { isLoopback, type Listen, showListen } from './config/listen.ts';
import type { Config } from './config/read.ts';
import { describeLimits, Metrics } from './metrics.ts';
import { keyFrom } from './protocols/http/key.ts';
import { type HttpNow, HttpSurface } from './protocols/http/server/server.ts';
import { lineProtocol } from './protocols/line/handler.ts';
import { respProtocol } from './protocols/resp/handler.ts';
import { RESP_BOUNDS } from './protocols/resp/parser.ts';
import { closeAll, Shelf, type Shelved } from './router/limiter-registry.ts';
import { Gate } from './router/router.ts';
import { Streams } from './server/connections.ts';
import { type Changed, Listeners } from './server/listeners.ts';
import { Estate, inheritance } from './snapshotter.ts';

export type Surface = 'line' | 'resp' | 'http' | 'groups';

export interface DaemonSetting {
  readonly log: Log;
  /** Reads the configuration again. */
  readonly load: () => Loaded;
  /** Of this package. */
  readonly version: string;
  readonly clock?: Clock;
  readonly random?: Random;
}

/** How a reload went: how many limits there are, and how many of them kept their counts. */
export type Reloaded =
  | { readonly ok: true; readonly limits: number; readonly kept: number }
  | { readonly ok: false; readonly problems: readonly string[] };

/** A stopping daemon goes on answering for so long: what was sent to it may still be on its way. */
const LAST_WORDS_MS: Millis = 50;

/** What a daemon is made of besides its configuration. */
interface Own {
  readonly clock: Clock;
  readonly seed: HashSeed;
  readonly hasher: Hasher;
  readonly clients: RedisClients;
  readonly company: Company;
}

export class Daemon {
  readonly gate: Gate;
  readonly #log: Log;
  readonly #load: () => Loaded;
  readonly #clock: Clock;
  readonly #clients: RedisClients;
  readonly #company: Company;
  readonly #shelf: Shelf;
  readonly #line: Streams;
  readonly #cells: Cells;
  readonly #resp: Streams;
  readonly #http: HttpSurface;
  readonly #metrics: Metrics;
  readonly #listeners: Listeners<Surface>;
  readonly #estate: Estate;
  #config: Config;
  #isStopping = false;
  /** Reloads and stops come one after the other. */
  #busy: Promise<unknown> = Promise.resolve();

  /** Starts one, listening. @throws {ConfigError} if it cannot be as the configuration says. */
  static async start(config: Config, setting: DaemonSetting): Promise<Daemon> {
    const { clock = systemClock, random = systemRandom, log } = setting;
    const left = await inheritance(config, clock, log);
    const clients = new RedisClients(log);
    await clients.prepare(config);
    const { peers } = config;
    const seed = (peers && seedOf(peers)) ?? left?.seed ?? hashSeed(random);
    const hash = hasher(seed);
    const company = await Company.prepare(config, { clock, random, log, clients, hasher: hash });
    const own = { clock, seed, hasher: hash, clients, company };
    const daemon = new Daemon(config, setting, own);
    daemon.#estate.inherit(left);
    try {
      await company.join();
      await daemon.#listen(config);
    } catch (error) {
      await daemon.#letGo();
      throw error;
    }
    await daemon.#estate.change(config.snapshot);
    return daemon;
  }

  private constructor(
    config: Config,
    { log, load, clock, random, version }: DaemonSetting,
    own: Own,
  ) {
    this.#config = config;
    this.#log = log;
    this.#load = load;
    this.#clock = own.clock;
    this.#clients = own.clients;
    this.#company = own.company;
    const { peers, pool, groups, shareOf } = own.company;
    const hash = own.hasher;
    const held = heldClock(own.clock);
    this.#shelf = new Shelf({ hasher: hash, held, clock, shareOf });
    this.#watch(this.#shelf.stock(config.limits).made);
    const gate = new Gate(config, this.#shelf, hash, random);
    this.gate = gate;
    const line = lineProtocol(gate.isAllowed.bind(gate), () => this.#config.bounds.key);
    this.#line = new Streams(line, () => boundsOf(this.#config), held);
    const cellsMax = config.bounds.cells;
    this.#cells = new Cells({ hasher: hash, keysMax: cellsMax, clock: held });
    const resp = respProtocol({
      gate,
      cells: this.#cells,
      version,
      clock: own.clock,
      clients: () => this.#resp.counts.open,
      token: () => this.#config.resp.password,
      bounds: () => ({ ...RESP_BOUNDS, keyBytesMax: this.#config.bounds.key }),
    });
    this.#resp = new Streams(resp, () => boundsOf(this.#config), held);
    this.#http = new HttpSurface(
      {
        gate,
        version,
        clock: held,
        metrics: () => this.#metrics.text(),
        reload: () => this.reload(),
        isReady: () => !this.#isStopping,
        rules: () => this.#config,
        peers: () => peers?.view(),
        pool: async () => pool?.shown(),
        groups: () => groups?.shown(),
        limits: () => describeLimits(this.#config.limits, this.#shelf),
        onError: (error) => log('error', 'a request over HTTP failed', { reason: reasonOf(error) }),
      },
      httpBy(config),
    );
    const watched = { line: this.#line, resp: this.#resp, http: this.#http, cells: this.#cells };
    this.#metrics = new Metrics(
      { ...watched, version, permits: gate.permits, peers, pool, groups },
      this.#shelf,
    );
    this.#estate = new Estate(this.#shelf, this.#cells, { seed: own.seed, clock: own.clock, log });
    this.#listeners = new Listeners({
      line: (socket) => this.#line.accept(socket),
      resp: (socket) => this.#resp.accept(socket),
      http: (socket, listen) => this.#http.accept(socket, isLoopback(listen)),
      groups: (socket) => groups?.accept(socket, this.#config.bounds.connections),
    });
  }

  /** Where each surface can be reached. */
  get addresses(): readonly { readonly surface: Surface; readonly listen: Listen }[] {
    return this.#listeners.addresses;
  }

  /** What it goes by at the moment. */
  get config(): Config {
    return this.#config;
  }

  /** Reads the configuration again and changes to it; if something is wrong, stays as it is. */
  reload(): Promise<Reloaded> {
    return this.#inTurn(async () => {
      const loaded = this.#load();
      const result =
        'problems' in loaded
          ? failed(loaded.problems)
          : await this.#change(loaded.config).catch((error) => failed([reasonOf(error)]));
      this.#metrics.reloaded(result.ok);
      if (result.ok) this.#log('info', 'reloaded', { limits: result.limits, kept: result.kept });
      else {
        // A log has one line for all of it: without the lines of the file that a terminal shows below each.
        const problems = result.problems.map((own) => own.split('\n', 1)[0]).join('; ');
        this.#log('error', 'reload failed, the last good configuration stays', { problems });
      }
      return result;
    });
  }

  async #change(config: Config): Promise<Reloaded> {
    if (this.#isStopping) return failed(['the daemon is stopping']);
    const changed = changedCompany(this.#config, config);
    if (changed.length > 0) {
      const why = 'that takes a restart, which a snapshot makes harmless';
      return failed(changed.map((section) => `\`${section}\` has changed: ${why}`));
    }
    await this.#clients.prepare(config);
    const { opened, closed } = await this.#listen(config);
    const { made, dropped } = this.#shelf.stock(config.limits);
    this.#config = config;
    this.gate.change(config);
    this.#http.change(httpBy(config));
    this.#metrics.change();
    this.#watch(made);
    await this.#estate.change(config.snapshot);
    for (const place of closed) this.#log('info', 'no longer listening', shown(place));
    for (const place of opened) this.#log('info', 'listening', shown(place));
    await closeAll(dropped);
    this.#clients.keepOnly(config);
    const limits = this.#shelf.all.length;
    return { ok: true, limits, kept: limits - made.length };
  }

  async #listen({ listen, admin, groups }: Config): Promise<Changed<Surface>> {
    const changed = await this.#listeners.change({ ...listen, groups: groups?.listen ?? [] });
    const open = listen.http.find((own) => !isLoopback(own));
    if (open && admin.token === undefined) {
      const at = showListen(open);
      this.#log('warn', 'admin pages are off for want of a token: set admin.token', { at });
    }
    return changed;
  }

  /** Answers what was asked, takes nothing more, and leaves its state to its successor. */
  stop(): Promise<void> {
    this.#isStopping = true;
    return this.#inTurn(async () => {
      this.#estate.saveNoMore();
      await this.#listeners.close();
      await new Promise<void>((resolve) => {
        alarm(this.#clock, this.#clock.now() + LAST_WORDS_MS, resolve, true);
      });
      const { drainMs } = this.#config.bounds;
      const surfaces = [this.#line, this.#resp, this.#http];
      await Promise.all(surfaces.map((surface) => surface.drain(drainMs)));
      await this.#company.leave();
      await this.#estate.save();
      await this.#letGo();
    });
  }

  /** Whatever would keep a process alive. */
  async #letGo(): Promise<void> {
    await this.#company.leave();
    await closeAll(this.#shelf.all);
    this.#clients.keepOnly(undefined);
  }

  #inTurn<T>(act: () => Promise<T>): Promise<T> {
    const done = this.#busy.then(act);
    this.#busy = done.catch(() => undefined);
    return done;
  }

  /** Tells when a limit's decider is out of reach, and when it is back. */
  #watch(made: readonly Shelved[]): void {
    for (const { name: limit, engine } of made) {
      if (engine instanceof Engine) continue;
      engine.on((event) => {
        if (event.type !== 'reach') return;
        const { isReachable, onUnavailable = '' } = event;
        if (isReachable) return this.#log('info', 'limit in reach again', { limit });
        const reason = reasonOf(event.reason);
        this.#log('warn', 'limit out of reach', { limit, onUnavailable, reason });
      });
    }
  }
}

const shown = ({ surface, listen }: { surface: Surface; listen: Listen }) => ({
  surface,
  at: showListen(listen),
});

const failed = (problems: readonly string[]): Reloaded => ({ ok: false, problems });

const boundsOf = ({ bounds }: Config) => ({
  connectionsMax: bounds.connections,
  slowMs: bounds.slowMs,
  idleMs: bounds.idleMs,
});

const httpBy = ({ admin, http, bounds }: Config): HttpNow => ({
  admin,
  keyOf: keyFrom(http),
  bounds: {
    keyMax: bounds.key,
    bodyMax: bounds.body,
    connectionsMax: bounds.connections,
    slowMs: bounds.slowMs,
    idleMs: bounds.idleMs,
  },
});
