/**
 * INFO: what people and tools look at first, in the form of Redis.
 */

import type { GcraTable } from '../../../backends/local/gcra-table.ts';
import type { Clock, Millis } from '../../../core/clock.ts';
import type { Router } from '../../router/router.ts';
import { encodeReply } from './reply.ts';

/** Tools look for a version of Redis and do without what came later. */
const REPORTED_REDIS_VERSION = '7.0.0';

/** One text for all who ask within so long: it is a long answer to a short question. */
const CACHE_MS: Millis = 100;

export interface InfoContext {
  readonly router: Router;
  readonly gcraTable: GcraTable;
  readonly clock: Clock;
  readonly version: string;
  /** Connections that are open. */
  readonly clients: () => number;
}

type Section = Readonly<Record<string, string | number>>;

export class Info {
  readonly #context: InfoContext;
  readonly #startedAt: Millis;
  /** By what was asked for: a section, or all of them. */
  readonly #cache = new Map<string, Buffer>();
  #cachedAt: Millis = Number.NEGATIVE_INFINITY;

  constructor(context: InfoContext) {
    this.#context = context;
    this.#startedAt = context.clock.now();
  }

  /** The answer to INFO for one section; any other name is for all of them. */
  encoded(section: string): Buffer {
    const now = this.#context.clock.now();
    if (now - this.#cachedAt >= CACHE_MS) {
      this.#cache.clear();
      this.#cachedAt = now;
    }
    const sections = this.#sections(now);
    const name = Object.hasOwn(sections, section) ? section : 'all';
    const known = this.#cache.get(name);
    if (known) return known;
    const chosen = name === 'all' ? Object.keys(sections) : [name];
    const text = chosen.map((own) => formatSection(own, sections[own]())).join('\r\n');
    const answer = encodeReply(2, (reply) => reply.bulk(text));
    this.#cache.set(name, answer);
    return answer;
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
    const sum = (pick: (own: (typeof stats)[number]) => number): number =>
      stats.reduce((total, own) => total + pick(own), 0);
    return {
      limits: stats.length,
      decisions: sum((own) => own.allowed + own.denied) + gcraTable.allowed + gcraTable.denied,
      allowed: sum((own) => own.allowed) + gcraTable.allowed,
      denied: sum((own) => own.denied) + gcraTable.denied,
      permits_held: router.permits.size,
      cell_keys: gcraTable.keys,
      cell_evicted: gcraTable.evicted,
      cell_bytes: gcraTable.bytes,
      cell_allowed: gcraTable.allowed,
      cell_denied: gcraTable.denied,
    };
  }
}

function formatSection(name: string, section: Section): string {
  const title = `# ${name[0].toUpperCase()}${name.slice(1)}`;
  const lines = Object.entries(section).map(([field, value]) => `${field}:${value}`);
  return `${[title, ...lines].join('\r\n')}\r\n`;
}
