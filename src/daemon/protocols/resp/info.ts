import type { Millis } from '../../../core/clock.ts';
import { isLimitName } from '../../router/limiter-registry.ts';
import type { CommandContext } from './command.ts';
import { encodeReply } from './reply.ts';

/** Tools expect a Redis version and do without later features. */
const REPORTED_REDIS_VERSION = '7.0.0';

/** A reply is reused within this time: it is long for a short command. */
const CACHE_MS: Millis = 100;

interface InfoContext extends Pick<CommandContext, 'router' | 'gcraTable' | 'clock' | 'version'> {
  /** Open connections. */
  readonly clients: () => number;
}

type Section = Readonly<Record<string, string | number>>;

export class Info {
  readonly #context: InfoContext;
  readonly #startedAt: Millis;
  /** By section, or `all`. */
  readonly #cache = new Map<string, Buffer>();
  #cachedAt: Millis = Number.NEGATIVE_INFINITY;

  constructor(context: InfoContext) {
    this.#context = context;
    this.#startedAt = context.clock.now();
  }

  /** The reply for one section; an unknown name means all. */
  encoded(section: string): Buffer {
    const now = this.#context.clock.now();
    if (now - this.#cachedAt >= CACHE_MS) {
      this.#cache.clear();
      this.#cachedAt = now;
    }
    const sections = this.#sections(now);
    const name = Object.hasOwn(sections, section) ? section : 'all';
    const cached = this.#cache.get(name);
    if (cached) return cached;
    const chosen = name === 'all' ? Object.keys(sections) : [name];
    const text = chosen.map((each) => formatSection(each, sections[each]())).join('\r\n');
    const encoded = encodeReply(2, (reply) => reply.bulk(text));
    this.#cache.set(name, encoded);
    return encoded;
  }

  #sections(now: Millis): Readonly<Record<string, () => Section>> {
    const { version, clients } = this.#context;
    return {
      server: () => ({
        sluice_version: version,
        redis_version: REPORTED_REDIS_VERSION,
        redis_mode: 'standalone',
        process_id: process.pid,
        uptime_in_seconds: Math.floor((now - this.#startedAt) / 1000),
      }),
      clients: () => ({ connected_clients: clients() }),
      persistence: () => ({ loading: 0 }),
      replication: () => ({ role: 'master', connected_slaves: 0 }),
      sluice: () => this.#sluiceSection(),
    };
  }

  #sluiceSection(): Section {
    const { router, gcraTable } = this.#context;
    const stats = router.registry.all.map(({ limiter }) => limiter.stats());
    const sum = (pick: (each: (typeof stats)[number]) => number): number =>
      stats.reduce((total, each) => total + pick(each), 0);
    return {
      limits: router.registry.all.filter(({ name }) => isLimitName(name)).length,
      decisions:
        sum(({ allowed, denied }) => allowed + denied) + gcraTable.allowed + gcraTable.denied,
      allowed: sum(({ allowed }) => allowed) + gcraTable.allowed,
      denied: sum(({ denied }) => denied) + gcraTable.denied,
      permits_held: router.permits.size,
      cl_throttle_keys: gcraTable.keys,
      cl_throttle_evicted: gcraTable.evicted,
      cl_throttle_bytes: gcraTable.bytes,
      cl_throttle_allowed: gcraTable.allowed,
      cl_throttle_denied: gcraTable.denied,
    };
  }
}

function formatSection(name: string, section: Section): string {
  const title = `# ${name[0].toUpperCase()}${name.slice(1)}`;
  const lines = Object.entries(section).map(([field, value]) => `${field}:${value}`);
  return `${[title, ...lines].join('\r\n')}\r\n`;
}
