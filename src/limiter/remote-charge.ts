/**
 * A call on several limiters whose backends decide elsewhere: all of them are charged, or none is.
 *
 *     prefetched tokens ──▶ all others on one server? ──▶ one call
 *                                  │ no
 *                                  ▼
 *     reserve one after the other ──▶ one refuses? ──▶ cancel the earlier ones
 *                                  │ no
 *                                  ▼
 *     confirm all at once ──▶ one has expired? ──▶ cancel all
 *
 * A reservation that is not confirmed expires, so a process that dies between the steps leaves no charge after that.
 * Backends that cannot reserve (registers in etcd, groups) are charged last, just before the others are confirmed.
 * Every process reserves in the same order: of two calls for the last units of the same limits, one succeeds.
 */

import type { RemoteDecision } from '../backends/remote-backend.ts';
import { deny } from '../core/decision.ts';
import type { AsyncLimiter } from './async-limiter.ts';
import { isLonger } from './composite-reservation.ts';
import type { Denied } from './limiter-core.ts';
import type { Permit, Refusal } from './permit.ts';

export interface RemoteCall {
  readonly limiter: AsyncLimiter;
  readonly key: string;
  readonly cost: number;
}

/** A cost that was charged, and how to undo it. */
export interface RemoteCharge<Call extends RemoteCall = RemoteCall> {
  readonly call: Call;
  readonly reply: RemoteDecision;
  readonly isPrefetched?: boolean;
}

/** A refusal, and the call that was refused. */
export interface RemoteRefusal<Call extends RemoteCall = RemoteCall> {
  readonly by: Call;
  readonly decision: Denied;
  readonly fromFallback?: boolean | undefined;
}

type Result<Call extends RemoteCall> = readonly RemoteCharge<Call>[] | RemoteRefusal<Call>;

export const isRemoteRefusal = <Call extends RemoteCall>(
  result: Result<Call>,
): result is RemoteRefusal<Call> => 'by' in result;

/**
 * Charges every call, or none: then returns the refusal with the longest wait that is known. A lock-out does not count the
 * refusal of a call that is waiting: it is checked again.
 */
export async function chargeAll<Call extends RemoteCall>(
  calls: readonly Call[],
  isWaiting = false,
): Promise<Result<Call>> {
  const closed = longest(
    calls.map((by) => refusalIn(by, by.limiter.localRefusal(by.key, by.cost))),
  );
  if (closed) return closed;
  const prefetched: RemoteCharge<Call>[] = [];
  const others: Call[] = [];
  const charged = await undoneOnError(prefetched, async () => {
    for (const call of calls) {
      const { backend, clock } = call.limiter;
      const decision = await backend.takePrefetched?.(call.key, call.cost);
      if (decision)
        prefetched.push({ call, reply: { decision, decidedAt: clock.now() }, isPrefetched: true });
      else others.push(call);
    }
    return chargeOnServers(others, isWaiting);
  });
  if (!isRemoteRefusal(charged)) return [...prefetched, ...charged];
  await undoAll(prefetched);
  return charged;
}

/** A permit of each call, or one refusal. The server of a single call remembers its `id`. */
export async function acquireAll(
  calls: readonly RemoteCall[],
  id?: string | undefined,
): Promise<Permit[] | Refusal> {
  if (calls.length === 1) {
    const [{ limiter, key, cost }] = calls;
    const one = await limiter.tryAcquire(key, cost, id === undefined ? {} : { id });
    return one.verdict === 'allow' ? [one] : one;
  }
  const charged = await chargeAll(calls);
  if (!isRemoteRefusal(charged))
    return charged.map(({ call: { limiter, key, cost }, reply }) =>
      limiter.permitFor(key, cost, reply, 0),
    );
  const { by, decision, fromFallback } = charged;
  return by.limiter.refuseReply(by.key, by.cost, decision, fromFallback);
}

/** Returns what was charged. */
export async function undoAll(charges: readonly RemoteCharge[]): Promise<void> {
  await Promise.all(charges.map(undo));
}

async function undoneOnError<T>(charges: readonly RemoteCharge[], send: () => Promise<T> | T) {
  try {
    return await send();
  } catch (error) {
    await undoAll(charges);
    throw error;
  }
}

async function undo({ call, reply, isPrefetched = false }: RemoteCharge): Promise<void> {
  const { limiter, key, cost } = call;
  const { backend } = limiter;
  const { reservationId, leaseId, decidedAt: dueAt, fromFallback } = reply;
  if (isPrefetched) await backend.returnPrefetched?.(key, cost);
  else if (reservationId !== undefined) await backend.cancel?.(key, reservationId);
  else if (leaseId !== undefined || !fromFallback)
    await backend.settle(key, { outcome: 'ignored', cost, dueAt, leaseId, fromFallback });
  if (fromFallback && reservationId === undefined) backend.cancelFallback?.(key, cost);
  limiter.wake(key);
}

function chargeOnServers<Call extends RemoteCall>(
  calls: readonly Call[],
  isWaiting: boolean,
): Promise<Result<Call>> | Result<Call> {
  if (calls.length === 0) return [];
  if (calls.length === 1) return chargeInSteps(calls, false, isWaiting);
  const parts = calls.map(({ limiter, key, cost }) => ({ backend: limiter.backend, key, cost }));
  const together = calls[0].limiter.backend.chargeTogether?.(parts, isWaiting);
  if (!together) return chargeInSteps(calls, true, isWaiting);
  return together.then(({ isGranted, decisions }) => {
    for (const [n, reply] of decisions.entries())
      if (reply?.fromFallback) calls[n].limiter.countFallback();
    if (isGranted) return decisions.map((reply, n) => ({ call: calls[n], reply }));
    const refusals = decisions.map((reply, n) =>
      refusalIn(calls[n], reply?.decision, reply?.fromFallback),
    );
    return longest(refusals) ?? { by: calls[0], decision: NOT_NOW };
  });
}

/** The call was undone although no limit refused it: a retry may fit at once. */
const NOT_NOW = deny(0) as Denied;

async function chargeInSteps<Call extends RemoteCall>(
  calls: readonly Call[],
  mayExpire: boolean,
  isWaiting: boolean,
): Promise<Result<Call>> {
  const ordered = [...calls].sort(inOrder);
  const charges: RemoteCharge<Call>[] = [];
  for (const [n, call] of ordered.entries()) {
    const { limiter, key, cost } = call;
    const { backend } = limiter;
    const reply = await undoneOnError(charges, () => {
      const reserved = mayExpire ? backend.reserve?.(key, cost, isWaiting) : undefined;
      return reserved ?? backend.checkNow(key, cost, isWaiting);
    });
    if (reply.fromFallback) limiter.countFallback();
    const refused = refusalIn(call, limiter.denyIfLate(reply), reply.fromFallback);
    if (!refused) {
      charges.push({ call, reply });
      continue;
    }
    await undoAll(charges);
    return refused.fromFallback ? refused : longestOf(refused, ordered.slice(n + 1));
  }
  const lost = (await Promise.all(charges.map(isKept))).indexOf(false);
  if (lost < 0) return charges;
  await undoAll(charges);
  return { by: charges[lost].call, decision: NOT_NOW };
}

/** Makes a charge final. Returns false if the charge has expired, on its server or on the way to this process. */
async function isKept({ call: { limiter, key }, reply }: RemoteCharge): Promise<boolean> {
  const { reservationId } = reply;
  try {
    const isConfirmed =
      reservationId === undefined || (await limiter.backend.confirm?.(key, reservationId));
    return isConfirmed === true && limiter.denyIfLate(reply).verdict !== 'deny';
  } catch {
    return false; // unavailable since it was reserved
  }
}

/** Limits that can reserve come first; then the order is by name and key. */
function inOrder(a: RemoteCall, b: RemoteCall): number {
  const [first, second] = [a, b].map(
    ({ limiter, key }) => `${limiter.backend.reserve ? 0 : 1}${limiter.name}\0${key}`,
  );
  if (first === second) return 0;
  return first < second ? -1 : 1;
}

/** Returns the refusal with the longest wait: of the limit that refused, and of those not checked yet, by peeking. */
async function longestOf<Call extends RemoteCall>(
  refused: RemoteRefusal<Call>,
  rest: readonly Call[],
): Promise<RemoteRefusal<Call>> {
  const peeks = rest.map(async (by) => refusalIn(by, await by.limiter.peek(by.key, by.cost)));
  return longest([refused, ...(await Promise.all(peeks))]) ?? refused;
}

function refusalIn<Call extends RemoteCall>(
  by: Call,
  decision: RemoteDecision['decision'] | undefined,
  fromFallback?: boolean,
): RemoteRefusal<Call> | undefined {
  return decision?.verdict === 'deny' ? { by, decision, fromFallback } : undefined;
}

function longest<Call extends RemoteCall>(
  refusals: readonly (RemoteRefusal<Call> | undefined)[],
): RemoteRefusal<Call> | undefined {
  let found: RemoteRefusal<Call> | undefined;
  for (const one of refusals) {
    const ms = one?.decision.retryAfterMs ?? 0;
    if (!found || (one && isLonger(ms, found.decision.retryAfterMs))) found = one ?? found;
  }
  return found;
}
