/**
 * Plays a pool through whatever can happen to it, and looks at every instant whether its parts add up to more
 * than the limit.
 *
 * Members come, sync, leave and crash; requests and answers are late, lost or overtaken; the store is out of
 * reach for all, or for one, or forgets everything; everybody's clock is wrong by up to an hour. Chance
 * decides what comes next, by a seed.
 */

import {
  type AgreementOptions,
  type Claim,
  emptyPool,
  leave,
  NOTHING,
  type PoolState,
  type SyncAnswer,
  sync,
} from '../../backends/pool/agreement.ts';
import { PoolMember } from '../../backends/pool/member.ts';
import type { Millis } from '../../core/clock.ts';
import { seededRandom } from '../../core/random.ts';
import { share } from '../../policies/ramp.ts';

export interface ExploreOptions {
  readonly seed: number;
  readonly steps: number;
  /** Whether members stop using their part before the store takes them for gone. */
  readonly isStrict: boolean;
}

export interface Explored {
  /** What was too much: when, of which limit, and how much. */
  readonly excess: readonly string[];
  /** Whether, left in peace for a while, all agreed, and the whole limit was in use. */
  readonly isWhole: boolean;
}

/** Longer than the second that parts are of, and shorter. */
const STALES_MS: readonly Millis[] = [2000, 600];
const HOLD_MS: Millis = 10_000;
/** Long enough for whoever crashed last to be missed, and for all to agree, up to the next second. */
const PEACE_MS: Millis = 6500;

const MEMBERS_MAX = 7;
const HOUR_MS: Millis = 3_600_000;

/** Limits whose remainders differ. */
const LIMITS = [1, 3, 5, 8, 100] as const;

/** Somebody who uses its part. */
interface User {
  readonly name: string;
  readonly member: PoolMember;
  /** How wrong its clock is. */
  readonly skewMs: Millis;
}

interface Node extends User {
  syncAt: Millis;
  /** Cut off from the store until then. */
  cutTo: Millis;
}

interface Mail {
  readonly at: Millis;
  readonly deliver: () => void;
}

export function explore({ seed, steps, isStrict }: ExploreOptions): Explored {
  const random = seededRandom(seed);
  const staleMs = STALES_MS[seed % STALES_MS.length];
  const options: AgreementOptions = { staleMs, isStrict };
  const between = (min: number, max: number): number => min + random() * (max - min);
  let now: Millis = between(1e6, 2e6);
  let pool: PoolState = emptyPool(now, options);
  let downTo: Millis = 0;
  let born = 0;
  let nodes: Node[] = [];
  let mail: Mail[] = [];
  const excess: string[] = [];
  const used = new Used();

  const add = (): void => {
    const name = `m${++born}`;
    const holdMs = isStrict ? staleMs : HOLD_MS;
    const skewMs = between(-HOUR_MS, HOUR_MS);
    const member = new PoolMember({ id: name, holdMs });
    nodes.push({ name, member, skewMs, syncAt: now + between(0, 100), cutTo: 0 });
  };

  /** In peace, nothing is lost and nothing takes long. */
  let isPeace = false;
  const isLost = (): boolean => !isPeace && random() < 0.03;
  const delayMs = (): Millis => random() * (isPeace || random() < 0.9 ? 5 : 0.45 * staleMs);

  const send = (node: Node): void => {
    const request = node.member.request(now + node.skewMs);
    node.syncAt = now + between(80, 120);
    if (now < downTo || now < node.cutTo || isLost()) return;
    mail.push({ at: now + delayMs(), deliver: () => arrive(node, request) });
  };

  const arrive = (node: Node, request: ReturnType<PoolMember['request']>): void => {
    if (now < downTo) return;
    const answer = sync(pool, request, now, options);
    if (!answer || isLost()) return;
    mail.push({ at: now + delayMs(), deliver: () => hear(node, request.seq, answer) });
  };

  const hear = (node: Node, seq: number, answer: SyncAnswer): void => {
    if (nodes.includes(node)) node.member.answered(seq, answer, now + node.skewMs);
  };

  const depart = (name: string): void => {
    if (now >= downTo && !isLost()) leave(pool, name, now);
  };

  /** What can happen besides syncs, and how likely it is at a step. */
  const happen = (): void => {
    const chance = random();
    const [victim] = nodes.length > 0 ? [nodes[Math.floor(random() * nodes.length)]] : [];
    if (chance < 0.02 && nodes.length < MEMBERS_MAX) add();
    else if (chance < 0.03 && victim) {
      nodes = nodes.filter((node) => node !== victim); // crashes
    } else if (chance < 0.04 && victim) {
      nodes = nodes.filter((node) => node !== victim);
      mail.push({ at: now + delayMs(), deliver: () => depart(victim.name) });
    } else if (chance < 0.045) downTo = now + between(50, 15_000);
    else if (chance < 0.048 && now >= downTo) pool = emptyPool(now, options);
    else if (isStrict && chance < 0.055 && victim) victim.cutTo = now + between(50, 15_000);
  };

  const pass = (ms: Millis): void => {
    const until = now + ms;
    while (now < until) {
      const due = Math.min(
        until,
        ...nodes.map(({ syncAt }) => syncAt),
        ...mail.map(({ at }) => at),
      );
      now = Math.max(now, due);
      const ready = mail.filter(({ at }) => at <= now);
      mail = mail.filter(({ at }) => at > now);
      for (const { deliver } of ready) deliver();
      for (const node of nodes) if (node.syncAt <= now) send(node);
      const found = used.look(now, nodes);
      if (found !== undefined && excess.length < 5) excess.push(found);
    }
  };

  add();
  for (let step = 0; step < steps; step++) {
    happen();
    pass(between(5, 60));
  }
  isPeace = true;
  downTo = 0;
  for (const node of nodes) node.cutTo = 0;
  if (nodes.length === 0) add();
  pass(PEACE_MS);
  return { excess, isWhole: used.isWhole };
}

/** What everybody could have used in this second of the store's clock, were it to take all it may at once. */
export class Used {
  /** Whether in the last second that is over it was all of every limit. */
  isWhole = false;
  #second = -1;
  #most = new Map<string, number[]>();

  look(now: Millis, users: readonly User[]): string | undefined {
    const second = Math.floor(now / 1000);
    if (second !== this.#second) {
      this.isWhole = LIMITS.every((limit, n) => this.#total(n) === limit);
      this.#most = new Map();
    }
    this.#second = second;
    for (const { name, member, skewMs } of users) {
      const own = member.second(now + skewMs);
      const claim = own === undefined ? NOTHING : member.claim(now + skewMs);
      const before = this.#most.get(name);
      const parts = LIMITS.map((limit, n) =>
        Math.max(before?.[n] ?? 0, partOf(limit, claim, own ?? 0)),
      );
      this.#most.set(name, parts);
    }
    const n = LIMITS.findIndex((limit, at) => this.#total(at) > limit);
    return n < 0 ? undefined : `at ${Math.round(now)}: ${this.#total(n)} of ${LIMITS[n]}`;
  }

  #total(n: number): number {
    return [...this.#most.values()].reduce((sum, parts) => sum + parts[n], 0);
  }
}

/** By the very rule that hands out tokens. */
const partOf = (limit: number, { size, rank }: Claim, second: number): number =>
  size === 0 ? 0 : share(limit, size, rank, second);
