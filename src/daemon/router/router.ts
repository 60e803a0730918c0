/**
 * The gate: what every surface asks, whatever it speaks.
 *
 *     surface parses ──▶ gate ──▶ routes: which limits, by the key ──▶ limiters ──▶ surface encodes
 *
 * A limit that decides here answers at once, and the gate with it; where one is shared through somebody
 * else, the answer is a promise. A call that meets several limits takes from all of them or from none.
 */

import { allow, type Decision, deny, NEVER } from '../../core/decision.ts';
import type { Hasher } from '../../core/hash.ts';
import { type Random, systemRandom } from '../../core/random.ts';
import type { Inspection } from '../../limiter/inspection.ts';
import type { Permit } from '../../limiter/permit.ts';
import { Engine } from '../../limiter/sync-limiter.ts';
import type { Shelf } from './limiter-registry.ts';
import { Permits } from './permits.ts';
import {
  type Applied,
  keyFor,
  type Route,
  Routes,
  type RoutesConfig,
  type Settled,
} from './routes.ts';

export interface Ask {
  /** One limit by its name; undefined: those that are for the key. */
  readonly limit?: string | undefined;
  readonly tag: string;
  readonly cost: number;
  /** Whether the caller will settle: it gets a permit. */
  readonly hold?: boolean;
}

export interface Answer {
  /** Allow or deny: nothing is ever reserved for later. */
  readonly decision: Decision;
  /** The limit that refused. */
  readonly limit?: string;
  /** Set if nobody could decide, and it was refused for that. */
  readonly reason?: 'unavailable';
  /** Why there was nothing to count. */
  readonly settled?: Settled;
  /** What to settle with; only for who holds. */
  readonly permit?: string;
}

/** All that is known of a limit whose decider cannot be asked. */
export interface OutOfReach {
  readonly name: string;
  readonly isReachable: false;
}

/** A limit was asked for by a name that nobody has. */
export interface Unknown {
  readonly unknown: string;
}

export const isUnknown = (answer: Answer | Unknown): answer is Unknown => 'unknown' in answer;

const ALLOWED: Answer = { decision: allow(Number.MAX_SAFE_INTEGER) };

export class Gate {
  readonly permits: Permits;
  readonly shelf: Shelf;
  readonly #hasher: Hasher;
  #routes: Routes;

  constructor(config: RoutesConfig, shelf: Shelf, hasher: Hasher, random: Random = systemRandom) {
    this.permits = new Permits(random);
    this.shelf = shelf;
    this.#hasher = hasher;
    this.#routes = new Routes(config, shelf);
  }

  /** From now on, by other rules. The shelf has them already. */
  change(config: RoutesConfig): void {
    this.#routes = new Routes(config, this.shelf);
  }

  /** May one call happen for this key? The shortest road: no text is made of the bytes if none is needed. */
  isAllowed(bytes: Buffer, from: number, to: number): boolean | Promise<boolean> {
    const hasher = this.#hasher;
    hasher.hashBytes(bytes, from, to);
    const known = this.#routes.recall(hasher);
    const quick = known?.quick?.askHashed(hasher, 1);
    if (quick) return quick.verdict === 'allow';
    const tag = bytes.toString('latin1', from, to);
    const answer = this.#ask(known ?? this.#routes.find(hasher, tag), { tag, cost: 1 });
    return answer instanceof Promise ? answer.then(isAllow) : isAllow(answer);
  }

  /** May `cost` happen? All or nothing. */
  ask(ask: Ask): Answer | Unknown | Promise<Answer> {
    const route = this.#routeOf(ask);
    return route ? this.#ask(route, ask) : { unknown: ask.limit ?? '' };
  }

  /** The same along a route that was found before, for who also wants to tell of it. */
  askAlong(route: Route, ask: Ask): Answer | Promise<Answer> {
    return this.#ask(route, ask);
  }

  /** How a call went that holds a permit; false if nobody holds it any more. */
  settle(permit: string, result: Parameters<Permit['settle']>[0]): boolean {
    return this.permits.settle(permit, result);
  }

  /** What would happen to this key, and why. */
  route(tag: string, limit?: string): Route | undefined {
    return this.#routeOf({ limit, tag, cost: 1 });
  }

  /** How the key stands with every limit it meets. */
  async inspect(
    tag: string,
    limit?: string,
  ): Promise<readonly (Inspection | OutOfReach)[] | undefined> {
    const route = this.route(tag, limit);
    if (!route) return undefined;
    const look = async (own: Applied): Promise<Inspection | OutOfReach> =>
      (await own.limiter.inspect(keyFor(own, tag))) ?? { name: own.name, isReachable: false };
    return Promise.all(route.applied.map(look));
  }

  #routeOf({ limit, tag }: Ask): Route | undefined {
    if (limit !== undefined) return this.#routes.named(limit, tag);
    this.#hasher.hash(tag);
    return this.#routes.recall(this.#hasher) ?? this.#routes.find(this.#hasher, tag);
  }

  #ask(route: Route, ask: Ask): Answer | Promise<Answer> {
    if (route.settled) return answerOf(route.settled);
    const here = ask.hold ? this.#hold(route, ask) : this.#take(route, ask);
    if (here.answer.decision.verdict === 'deny') return here.answer;
    if (route.there.length > 0) {
      const answer = this.#askThere(route, ask, here);
      for (const { underway } of route.there) underway.add(answer);
      return answer;
    }
    for (const own of route.shadows) askShadow(own, ask);
    return this.#grant(here, ask);
  }

  /** Takes what those give who decide here. */
  #take(route: Route, { tag, cost }: Ask): Taken {
    if (route.quick) return { answer: askOne(route.quick, tag, cost), held: [] };
    for (const own of route.looked) {
      const decision = own.limiter.peek(keyFor(own, tag), cost);
      if (decision.verdict === 'deny') return { answer: { decision, limit: own.name }, held: [] };
    }
    return { answer: route.here?.askNaming(tag, cost) ?? ALLOWED, held: [] };
  }

  #hold(route: Route, { tag, cost }: Ask): Taken {
    const permit = route.hereHolding?.tryAcquire(tag, cost);
    if (!permit) return { answer: ALLOWED, held: [] };
    if (permit.verdict === 'allow') return { answer: ALLOWED, held: [permit] };
    const { retryAfterMs, limit } = permit;
    return { answer: { decision: deny(retryAfterMs), limit }, held: [] };
  }

  /** Then those that somebody else decides, one after the other; who refuses undoes the rest. */
  async #askThere(route: Route, ask: Ask, here: Taken): Promise<Answer> {
    const held: Permit[] = [...here.held];
    for (const own of route.there) {
      const permit = await own.limiter.tryAcquire(keyFor(own, ask.tag), ask.cost);
      if (permit.verdict === 'allow') {
        held.push(permit);
        continue;
      }
      for (const other of held) other.settle({ outcome: 'ignored' });
      if (!ask.hold) route.here?.settle(ask.tag, { outcome: 'ignored', cost: ask.cost });
      const { retryAfterMs, limit, reason } = permit;
      return { decision: deny(retryAfterMs), limit, ...(reason === 'unavailable' && { reason }) };
    }
    for (const own of route.shadows) askShadow(own, ask);
    return this.#grant({ answer: here.answer, held }, ask);
  }

  /** Who settles later gets a permit; for who does not, everything is settled now. */
  #grant({ answer, held }: Taken, { hold }: Ask): Answer {
    if (!hold) {
      for (const permit of held) permit.settle();
      return answer;
    }
    const permit = this.permits.add(held);
    return permit === undefined ? answer : { ...answer, permit };
  }
}

/** What was answered so far, and what was taken for it. */
interface Taken {
  readonly answer: Answer;
  readonly held: readonly Permit[];
}

/** One limit alone needs nobody to bring several together. */
function askOne(limiter: Engine, tag: string, cost: number): Answer {
  const decision = limiter.ask(tag, cost);
  return decision.verdict === 'deny' ? { decision, limit: limiter.name } : { decision };
}

const isAllow = ({ decision }: Answer): boolean => decision.verdict === 'allow';

function answerOf(settled: Settled): Answer {
  const decision = settled.isAllowed ? ALLOWED.decision : deny(NEVER);
  const { limit } = settled;
  return { decision, settled, ...(limit !== undefined && !settled.isAllowed && { limit }) };
}

/** A limit that only counts: what it says is in its figures, and nowhere else. */
function askShadow(own: Applied, { tag, cost }: Ask): void {
  const key = keyFor(own, tag);
  if (own.limiter instanceof Engine) {
    const permit = own.limiter.tryAcquire(key, cost);
    if (permit.verdict === 'allow') permit.settle();
    return;
  }
  const asked = own.limiter.tryAcquire(key, cost);
  own.underway.add(asked.then((permit) => permit.verdict === 'allow' && permit.settle()));
}
