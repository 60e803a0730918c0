/**
 * A joint check in one script call: limits on one Redis with any rules, keys and costs.
 *
 * A limit is one part, or two if it counts calls in flight besides other rules (`combined.ts`). The parts must be on
 * one node: any keys of a single server, or keys of one cluster slot. Otherwise there is no such call, and the limiter
 * charges in two steps (`limiter/remote-charge.ts`). The call is sent in the batch of the first part.
 */

import type { JointDecision, JointPartRequest, RemoteDecision } from '../remote-backend.ts';
import type { RedisContext } from './context.ts';
import { slotOf } from './slot.ts';

/** One part of a joint check, and the backend that decides it. */
export interface JointPart {
  readonly context: RedisContext;
  readonly redisKey: string;
  /** `<cost> <lease> <rules>`, as in `lua-joint.ts`. */
  readonly text: string;
  /** Reads the reply, granted or refused. */
  read(reply: string, at: number): RemoteDecision;
  /** The decision of the fallback without a reply. */
  undecided(error: unknown): RemoteDecision;
  /** Undoes a grant of `undecided`. */
  undo(granted: RemoteDecision): void;
  /** Tells the backend about a call that it must await before it closes. */
  track?(call: Promise<unknown>): void;
}

/** A call on one limit: its parts, and the decision of all of them. */
export interface JointCall {
  readonly parts: readonly JointPart[];
  /** Joins the decisions of the parts: all granted; or, after a refusal, undefined for parts that would allow. */
  join(decisions: readonly (RemoteDecision | undefined)[]): RemoteDecision | undefined;
}

/** A backend of this folder. */
export interface JointMember {
  /** `isWaiting`: a refused call continues to wait. */
  jointCall(key: string, cost: number, isWaiting: boolean): JointCall;
}

const isMember = (backend: object): backend is JointMember => 'jointCall' in backend;

export const singlePart = (part: JointPart): JointCall => ({
  parts: [part],
  join: ([decision]) => decision,
});

/**
 * Effect of a refusal: `n` is final; `q`: the call continues to wait and no lock-out counts it. With `a` a slot may be
 * reserved, for one limit only.
 */
export type JointMode = 'n' | 'q' | 'a';

/** The reply of a part that would allow. */
const WOULD_ALLOW = 'ok';

/** Charges all parts or none in one call; undefined if they are not on one node. */
export function chargeTogether(
  requests: readonly JointPartRequest[],
  mode: JointMode = 'n',
): Promise<JointDecision> | undefined {
  const calls: JointCall[] = [];
  for (const { backend, key, cost } of requests) {
    if (!isMember(backend)) return undefined;
    calls.push(backend.jointCall(key, cost, mode === 'q'));
  }
  const parts = calls.flatMap((call) => call.parts);
  if (!areOnOneNode(parts)) return undefined;
  const charged = charge(parts, mode).then((decided) => joinDecisions(calls, decided));
  for (const part of parts) part.track?.(charged);
  return charged;
}

/** Joins the decisions of each call's parts. */
function joinDecisions(calls: readonly JointCall[], decided: JointDecision): JointDecision {
  let from = 0;
  const decisions = calls.map(({ parts, join }) => {
    from += parts.length;
    return join(decided.decisions.slice(from - parts.length, from));
  });
  return { ...decided, decisions } as JointDecision;
}

function areOnOneNode([first, ...others]: readonly JointPart[]): boolean {
  const { connection } = first.context;
  if (others.some(({ context }) => context.connection.client !== connection.client)) return false;
  if (!connection.isCluster) return true;
  const slot = slotOf(first.redisKey);
  return others.every(({ redisKey }) => slotOf(redisKey) === slot);
}

async function charge(parts: readonly JointPart[], mode: JointMode): Promise<JointDecision> {
  const [{ context, redisKey }] = parts;
  const keys = parts.map((part) => part.redisKey);
  const command = `j${mode}${parts.map(({ text }) => `${text};`).join('')}`;
  try {
    const { value, at } = await context.batcher.send(redisKey, command, keys);
    const [verdict, ...replies] = String(value).split(';');
    if (verdict === '1')
      return { isGranted: true, decisions: parts.map((part, n) => part.read(replies[n], at)) };
    const decisions = parts.map((part, n) =>
      replies[n] === WOULD_ALLOW ? undefined : part.read(replies[n], at),
    );
    return { isGranted: false, decisions };
  } catch (error) {
    return decideUnavailable(parts, error);
  }
}

/** Each part's fallback decides; if one refuses, the grants of the others are undone. */
function decideUnavailable(parts: readonly JointPart[], error: unknown): JointDecision {
  const decisions = parts.map((part) => part.undecided(error));
  const isDenied = ({ decision }: RemoteDecision): boolean => decision.verdict === 'deny';
  if (!decisions.some(isDenied)) return { isGranted: true, decisions };
  for (const [n, one] of decisions.entries()) if (!isDenied(one)) parts[n].undo(one);
  return { isGranted: false, decisions: decisions.map((one) => (isDenied(one) ? one : undefined)) };
}
