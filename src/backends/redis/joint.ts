/**
 * A joint check in one script call: limits of one Redis, whatever their rules, keys and costs.
 *
 * The parts must be on one node: any keys of a single server, or keys of one slot of a cluster. Else there is no such call,
 * and the limiter charges in two steps (`limiter/remote-charge.ts`). The call travels in the batch of the first part.
 */

import type { JointDecision, JointPartRequest, RemoteDecision } from '../remote-backend.ts';
import type { RedisContext } from './context.ts';
import { slotOf } from './slot.ts';

/** One part of a joint check, of the backend that decides it. */
export interface JointPart {
  readonly context: RedisContext;
  readonly redisKey: string;
  /** `<cost> <lease> <rules>` of `lua-joint.ts`. */
  readonly text: string;
  /** Reads the reply of a part that was granted. */
  accept(reply: string, at: number): RemoteDecision;
  /** Reads the reply of a part that refuses. */
  refuse(reply: string, at: number): RemoteDecision;
  /** What the fallback decides without a reply. */
  undecided(error: unknown): RemoteDecision;
  /** Takes back what `undecided` granted. */
  undo(granted: RemoteDecision): void;
  /** Tells the backend of a call that it must wait for before it closes. */
  track?(call: Promise<unknown>): void;
}

/** A backend of this folder. */
interface JointMember {
  /** Undefined if its rules need a script of their own. */
  jointPart(key: string, cost: number): JointPart | undefined;
}

const isMember = (backend: object): backend is JointMember => 'jointPart' in backend;

/** The reply of a part that would allow. */
const WOULD_ALLOW = 'ok';

/** Charges all parts or none in one call; undefined if they are not on one node. */
export function chargeTogether(
  requests: readonly JointPartRequest[],
): Promise<JointDecision> | undefined {
  const parts: JointPart[] = [];
  for (const { backend, key, cost } of requests) {
    const part = isMember(backend) ? backend.jointPart(key, cost) : undefined;
    if (!part) return undefined;
    parts.push(part);
  }
  if (!areOnOneNode(parts)) return undefined;
  const charged = charge(parts);
  for (const part of parts) part.track?.(charged);
  return charged;
}

function areOnOneNode([first, ...others]: readonly JointPart[]): boolean {
  const { connection } = first.context;
  if (others.some(({ context }) => context.connection.client !== connection.client)) return false;
  if (!connection.isCluster) return true;
  const slot = slotOf(first.redisKey);
  return others.every(({ redisKey }) => slotOf(redisKey) === slot);
}

async function charge(parts: readonly JointPart[]): Promise<JointDecision> {
  const [{ context, redisKey }] = parts;
  const keys = parts.map((part) => part.redisKey);
  const command = `j${parts.map(({ text }) => `${text};`).join('')}`;
  try {
    const { value, at } = await context.batcher.send(redisKey, command, keys);
    const [verdict, ...replies] = String(value).split(';');
    if (verdict === '1')
      return { isGranted: true, decisions: parts.map((part, n) => part.accept(replies[n], at)) };
    const decisions = parts.map((part, n) =>
      replies[n] === WOULD_ALLOW ? undefined : part.refuse(replies[n], at),
    );
    return { isGranted: false, decisions };
  } catch (error) {
    return decideUnavailable(parts, error);
  }
}

/** Each part's fallback decides; if one refuses, the others take back what they granted. */
function decideUnavailable(parts: readonly JointPart[], error: unknown): JointDecision {
  const decisions = parts.map((part) => part.undecided(error));
  const isDenied = ({ decision }: RemoteDecision): boolean => decision.verdict === 'deny';
  if (!decisions.some(isDenied)) return { isGranted: true, decisions };
  for (const [n, one] of decisions.entries()) if (!isDenied(one)) parts[n].undo(one);
  return { isGranted: false, decisions: decisions.map((one) => (isDenied(one) ? one : undefined)) };
}
