/**
 * A decision as HTTP says it: 200 or a refusal, with the RateLimit headers and the problem bodies of
 * `sluice/http`, and the decision in JSON, in the words of the library. JSON has null in the place of Infinity: that
 * is never.
 */

import { HeaderWriter } from '../../../adapters/http/headers.ts';
import { refuse } from '../../../adapters/http/refusal.ts';
import { NEVER } from '../../../core/decision.ts';
import type { Inspection, NamedStanding } from '../../../limiter/inspection.ts';
import { Engine } from '../../../limiter/sync-limiter.ts';
import type { Answer } from '../../router/router.ts';
import { type Applied, keyFor, type Route } from '../../router/routes.ts';
import type { Question } from './check-request.ts';
import { problem, type Reply } from './reply.ts';

/** How a key stands with the limits it meets; several are seen as one. */
type Seen = Pick<Inspection, 'name' | 'remaining' | 'rules' | 'by'>;

const NOTHING_SEEN: Seen = { name: '', remaining: 0, rules: [] };

const JSON_TYPE: readonly string[] = ['Content-Type', 'application/json'];

/** Who tells of the limits of a route. What it says of them hardly ever changes, so it is kept. */
interface Teller {
  readonly writer: HeaderWriter;
  readonly applied: readonly Applied[];
  readonly isHere: boolean;
}

export class Verdicts {
  readonly #tellers = new WeakMap<Route, Teller>();

  /** A promise only if a limit of the route is looked at somewhere else. */
  reply(question: Question, tag: string, answer: Answer, route: Route): Reply | Promise<Reply> {
    if (answer.settled) return withoutCount(question, answer);
    const { writer, applied, isHere } = this.#tellerOf(route);
    if (isHere) return counted(question, answer, writer, look(applied, tag));
    return lookThere(applied, tag).then((seen) => counted(question, answer, writer, seen));
  }

  /** The same for an answer that somebody else has yet to give. */
  async replyLate(
    question: Question,
    tag: string,
    answer: Promise<Answer>,
    route: Route,
  ): Promise<Reply> {
    if (route.there.length !== 1) return this.reply(question, tag, await answer, route);
    // Asked in the same breath, how the key stands afterwards comes with the same trip.
    const { writer, applied } = this.#tellerOf(route);
    const seeing = lookThere(applied, tag, answer);
    return counted(question, await answer, writer, await seeing);
  }

  #tellerOf(route: Route): Teller {
    const known = this.#tellers.get(route);
    if (known) return known;
    // A limit that only counts is nobody's business yet.
    const applied = route.applied.filter(({ limit }) => !limit.shadow);
    const isHere = applied.every(({ limiter }) => limiter instanceof Engine);
    const teller = { writer: new HeaderWriter('draft'), applied, isHere };
    this.#tellers.set(route, teller);
    return teller;
  }
}

function look(applied: readonly Applied[], tag: string): Seen {
  if (applied.length === 1) return (applied[0].limiter as Engine).inspect(keyFor(applied[0], tag));
  return together(applied.map((own) => (own.limiter as Engine).inspect(keyFor(own, tag))));
}

/**
 * Somebody who decides and is out of reach cannot be looked at: then nothing is said of it. Those here are looked at once it is
 * decided, as whoever refuses undoes what they gave.
 */
async function lookThere(
  applied: readonly Applied[],
  tag: string,
  decided?: Promise<unknown>,
): Promise<Seen> {
  const look = (own: Applied) => own.limiter.inspect(keyFor(own, tag));
  const isHere = ({ limiter }: Applied): boolean => limiter instanceof Engine;
  try {
    const asked = applied.map((own) => (isHere(own) ? undefined : look(own)));
    const [there] = await Promise.all([Promise.all(asked), decided]);
    const seen = await Promise.all(applied.map((own, n) => (isHere(own) ? look(own) : there[n])));
    return together(seen.filter((own) => own !== undefined));
  } catch {
    return NOTHING_SEEN; // what was decided holds all the same
  }
}

function together(seen: readonly Inspection[]): Seen {
  if (seen.length === 0) return NOTHING_SEEN;
  const paused = seen.find(({ by }) => by === 'pause');
  const by = paused?.by;
  const remaining = Math.min(...seen.map((own) => own.remaining));
  const rules = seen.flatMap((own) => own.rules);
  return { name: seen[0].name, remaining, rules, ...(by !== undefined && { by }) };
}

function counted(question: Question, answer: Answer, writer: HeaderWriter, seen: Seen): Reply {
  const { decision, permit } = answer;
  if (decision.verdict === 'deny') return refused(question, answer, writer, seen);
  const { RateLimit: state, 'RateLimit-Policy': policy } = writer.write(seen.rules);
  const headers =
    state === undefined
      ? JSON_TYPE
      : [...JSON_TYPE, 'RateLimit-Policy', policy, 'RateLimit', state];
  const held = permit === undefined ? '' : `,"permit":${JSON.stringify(permit)}`;
  return { status: 200, headers, body: `{"verdict":"allow"${left(seen)}${held}}` };
}

function left(seen: Seen): string {
  const least = leastOf(seen);
  return least === undefined ? '' : `,"remaining":${least}`;
}

/** What is left of the tightest rule, if there is one. */
function leastOf({ rules }: Seen): number | undefined {
  if (rules.length === 0) return undefined;
  let least = Infinity;
  for (const rule of rules) least = Math.min(least, remainingOf(rule));
  return least;
}

const remainingOf = ({ remaining }: NamedStanding): number =>
  Math.max(0, Math.min(Number.MAX_SAFE_INTEGER, Math.floor(remaining)));

function refused(question: Question, answer: Answer, writer: HeaderWriter, seen: Seen): Reply {
  const { decision, limit, reason } = answer;
  const retryAfterMs = decision.verdict === 'deny' ? decision.retryAfterMs : 0;
  const found = limit === undefined ? seen : { ...seen, name: limit };
  const denied = { cost: question.cost, retryAfterMs, ...(reason && { reason }) };
  const reply = refuse(denied, found, writer);
  const headers: string[] = [];
  for (const name in reply.headers) headers.push(name, reply.headers[name]);
  const status = question.status ?? reply.status;
  const told = { verdict: 'deny', remaining: leastOf(seen), retryAfterMs, limit, reason };
  const body = JSON.stringify({ ...JSON.parse(reply.body), status, ...told });
  return { status, headers, body };
}

/** A list says so, or no limit is for the key: there is nothing to count. */
function withoutCount({ status = 403 }: Question, { settled }: Answer): Reply {
  if (settled?.isAllowed !== false) {
    return { status: 200, headers: JSON_TYPE, body: '{"verdict":"allow"}' };
  }
  const { reason, limit, by } = settled;
  const whose = limit === undefined ? '' : ` of limit "${limit}"`;
  const detail =
    reason === 'unmatched'
      ? 'No limit is for this key, and such keys are refused.'
      : `The key is on the deny list${whose}${by ? ` (${by.text})` : ''}.`;
  const denied = problem(status, detail);
  const told = { verdict: 'deny', retryAfterMs: NEVER, reason, limit };
  return { ...denied, body: JSON.stringify({ ...JSON.parse(denied.body), ...told }) };
}

/** One of many answers, for those who ask in a batch. */
export function inBrief({ decision, limit, reason, settled, permit }: Answer): object {
  const { verdict } = decision;
  return {
    verdict,
    ...(verdict === 'allow' &&
      isCount(decision.remaining) && { remaining: Math.floor(decision.remaining) }),
    ...(verdict === 'deny' && { retryAfterMs: decision.retryAfterMs }),
    ...(limit !== undefined && { limit }),
    ...(reason !== undefined && { reason }),
    ...(settled && { reason: settled.reason }),
    ...(permit !== undefined && { permit }),
  };
}

/** Where nobody counts, there is no end to what is left. */
const isCount = (remaining: number): boolean => remaining < Number.MAX_SAFE_INTEGER;
