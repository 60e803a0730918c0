/**
 * INFO: what people and tools look at first, in the form of Redis.
 */

import type { Cells } from '../../../backends/local/gcra-table.ts';
import type { Clock, Millis } from '../../../core/clock.ts';
import type { Gate } from '../../router/router.ts';
import { replyWith } from './reply.ts';

/** Tools look for a version of Redis and do without what came later. */
const LIKE_REDIS = '7.0.0';

/** One text for all who ask within so long: it is a long answer to a short question. */
const FRESH_MS: Millis = 100;

export interface InfoSetting {
  readonly gate: Gate;
  readonly cells: Cells;
  readonly clock: Clock;
  readonly version: string;
  /** Connections that are open. */
  readonly clients: () => number;
}

type Section = Readonly<Record<string, string | number>>;

export class Info {
  readonly #setting: InfoSetting;
  readonly #startedAt: Millis;
  /** By what was asked for: a section, or all of them. */
  readonly #made = new Map<string, Buffer>();
  #madeAt: Millis = Number.NEGATIVE_INFINITY;

  constructor(setting: InfoSetting) {
    this.#setting = setting;
    this.#startedAt = setting.clock.now();
  }

  /** The answer to INFO for one section; any other name is for all of them. */
  answer(section: string): Buffer {
    const now = this.#setting.clock.now();
    if (now - this.#madeAt >= FRESH_MS) {
      this.#made.clear();
      this.#madeAt = now;
    }
    const sections = this.#sections(now);
    const name = Object.hasOwn(sections, section) ? section : 'all';
    const known = this.#made.get(name);
    if (known) return known;
    const chosen = name === 'all' ? Object.keys(sections) : [name];
    const text = chosen.map((own) => paragraph(own, sections[own]())).join('\r\n');
    const answer = replyWith(2, (reply) => reply.bulk(text));
    this.#made.set(name, answer);
    return answer;
  }

  #sections(now: Millis): Readonly<Record<string, () => Section>> {
    const { version, clients } = this.#setting;
    return {
      server: () => ({
        sluice_version: version,
        redis_version: LIKE_REDIS,
        redis_mode: 'standalone',
        process_id: process.pid,
        uptime_in_seconds: Math.floor((now - this.#startedAt) / 1000),
      }),
      clients: () => ({ connected_clients: clients() }),
      persistence: () => ({ loading: 0 }),
      replication: () => ({ role: 'master', connected_slaves: 0 }),
      sluice: () => this.#figures(),
    };
  }

  #figures(): Section {
    const { gate, cells } = this.#setting;
    const stats = gate.shelf.all.map(({ engine }) => engine.stats());
    const sum = (pick: (own: (typeof stats)[number]) => number): number =>
      stats.reduce((total, own) => total + pick(own), 0);
    return {
      limits: stats.length,
      decisions: sum((own) => own.allowed + own.denied) + cells.allowed + cells.denied,
      allowed: sum((own) => own.allowed) + cells.allowed,
      denied: sum((own) => own.denied) + cells.denied,
      permits_held: gate.permits.size,
      cell_keys: cells.keys,
      cell_evicted: cells.evicted,
      cell_bytes: cells.bytes,
      cell_allowed: cells.allowed,
      cell_denied: cells.denied,
    };
  }
}

function paragraph(name: string, section: Section): string {
  const title = `# ${name[0].toUpperCase()}${name.slice(1)}`;
  const lines = Object.entries(section).map(([field, value]) => `${field}:${value}`);
  return `${[title, ...lines].join('\r\n')}\r\n`;
}
