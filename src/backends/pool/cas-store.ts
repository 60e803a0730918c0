/**
 * Pool store on compare-and-swap: a pool is one document with a revision.
 *
 *     get ──▶ sync, local (`agreement.ts`) ──▶ put, if the revision is unchanged ──▶ response
 *      ▲                                          │ it has changed
 *      └──────────────────────────────────────────┘
 *
 * The agreement runs in the syncing process, but only the server's clock counts. A process keeps two bounds on that
 * clock (`ClockOffset`), relative to a monotonic clock, and uses the safe one:
 *
 *     written times        the upper bound: a release happened before it
 *     dropped members      silent for `memberTimeout` plus the uncertainty of the clock
 *     responses            both bounds: where one second may be over and the next may not have begun,
 *                          the member uses nothing
 *
 * Revisions are expensive: they make other members retry, and etcd writes each to disk. So the time of a member's last
 * sync is written slightly ahead. Until then a sync without changes is answered from the document that was read.
 *
 * A put with an unknown outcome is a sync whose response was lost. A put that executes late meets another revision. A
 * missing document means that the store lost its state, and a document from the future that the server's clock was set
 * back: both start a quiet period.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import type { ClockOffset } from '../../core/clock-offset.ts';
import { withDeadline } from '../../core/deadline.ts';
import { UnavailableError } from '../../core/errors.ts';
import { tryParseJson } from '../../core/json.ts';
import { isRecord } from '../../core/options.ts';
import type { Random } from '../../core/random.ts';
import { NO_REVISION } from '../etcd/store.ts';
import {
  type AgreementOptions,
  applyLeave,
  applySync,
  createPoolState,
  type PoolState,
} from './agreement.ts';
import type { PoolStore } from './store.ts';

export interface VersionedDocument {
  /** Undefined if the document was deleted, where deletions have a revision. */
  readonly text?: string;
  readonly revision: string;
}

/** A server with versioned documents and a clock. Calls reject after their deadline. */
export interface CasServer {
  readonly name: string;
  readonly clockOffset: ClockOffset;
  get(pool: string): Promise<VersionedDocument | undefined>;
  /** Returns false if the revision has changed. */
  put(pool: string, text: string, revision: string): Promise<boolean>;
  /** Measures the server's clock, now or when that narrows the bounds most. */
  measureClock(): Promise<void>;
  close(): Promise<void>;
}

/** Above this uncertainty, the clock is measured again. */
const TARGET_UNCERTAINTY_MS: Millis = 10;
/** Above this uncertainty, no sync happens. */
const MAX_UNSURE_MS: Millis = 200;
/** Deadline for reducing the uncertainty: a server may report whole seconds only. */
const MAX_MEASURE_MS: Millis = 3000;

/**
 * How long a sync without changes is not written, as a fraction of `memberTimeout`: per member, and at most. A small
 * pool thus detects a crash soon, and a large one does not write more often than a small one.
 */
const UNWRITTEN_PER_MEMBER = 0.01;
const MAX_UNWRITTEN = 0.5;
/** After this fraction without any write, the next sync writes: at half of it the pool would assume an outage. */
const MAX_ALL_UNWRITTEN = 0.2;

/**
 * A lost race is retried after a random delay whose bound doubles up to the maximum. With immediate retries, one of
 * fifty members would succeed each time, slowed down by the attempts of the others.
 */
const RETRY_BACKOFF_MS: Millis = 4;
const MAX_BACKOFF_MS: Millis = 128;

/** A document further in the future than this was written by another clock. */
const MAX_AHEAD_MS: Millis = 1000;

export function casStore(
  server: CasServer,
  deadlineMs: Millis,
  clock: Clock,
  random: Random,
): PoolStore {
  let measuring: Promise<void> | undefined;
  const uncertaintyMs = (): Millis => {
    const { min, max } = server.clockOffset.boundsAt(clock.now());
    return max - min;
  };
  const measure = (): Promise<void> => {
    measuring ??= server.measureClock().finally(() => {
      measuring = undefined;
    });
    return measuring;
  };
  const ensureTime = async (): Promise<void> => {
    const deadlineAt = clock.now() + MAX_MEASURE_MS;
    while (!(uncertaintyMs() <= MAX_UNSURE_MS)) {
      if (clock.now() > deadlineAt)
        throw new UnavailableError(server.name, 'its clock is not known');
      await measure();
    }
    if (uncertaintyMs() > TARGET_UNCERTAINTY_MS) measure().catch(() => {}); // in the background; if it fails, so does the sync
  };

  /** Reads, changes and writes a pool; repeats after a lost race, until the deadline. */
  const change = async <T>(
    pool: string,
    act: (found: PoolState | undefined, now: Millis) => Mutation<T>,
  ): Promise<T> => {
    await ensureTime();
    return withDeadline(clock, deadlineMs, server.name, async (isOver) => {
      for (
        let backoffMs = RETRY_BACKOFF_MS;
        !isOver();
        backoffMs = Math.min(2 * backoffMs, MAX_BACKOFF_MS)
      ) {
        const found = await server.get(pool);
        const now = clock.now() + server.clockOffset.boundsAt(clock.now()).max;
        const { state, result } = act(parsePoolState(found?.text, pool), now);
        if (!state) return result;
        const text = JSON.stringify(state);
        if (await server.put(pool, text, found?.revision ?? NO_REVISION)) return result;
        await sleepFor(clock, backoffMs * random());
      }
      throw new UnavailableError(server.name, 'every swap lost to another member');
    });
  };

  return {
    name: server.name,
    async sync(pool, request, options) {
      const response = await change(pool, (found, now) => {
        const safe: AgreementOptions = {
          ...options,
          memberTimeoutMs: options.memberTimeoutMs + uncertaintyMs(),
        };
        const isUsable = found && found.syncedAt <= now + MAX_AHEAD_MS;
        const state = isUsable ? found : createPoolState(now, safe);
        const before = agreementFingerprint(state);
        const writtenTo = findMember(state, request.id)?.heardAt ?? -Infinity;
        const isDue =
          now >= writtenTo || now - state.syncedAt >= MAX_ALL_UNWRITTEN * options.memberTimeoutMs;
        const result = applySync(state, request, now, safe);
        const isChanged = isDue || agreementFingerprint(state) !== before;
        if (!result || !isChanged) return { result };
        const part = Math.min(UNWRITTEN_PER_MEMBER * state.members.length, MAX_UNWRITTEN);
        const member = findMember(state, request.id);
        if (member) member.heardAt = now + part * options.memberTimeoutMs;
        return { state, result };
      });
      const now = clock.now() + server.clockOffset.boundsAt(clock.now()).min;
      return response && { ...response, now, clockUncertaintyMs: uncertaintyMs() };
    },
    async leave(pool, id) {
      await change(pool, (found, now) => {
        if (!found || !findMember(found, id)) return { result: undefined };
        applyLeave(found, id, now);
        return { state: found, result: undefined };
      });
    },
    async saveCheckpoint(pool, text) {
      const name = checkpointNameOf(pool);
      const found = await server.get(name);
      await server.put(name, text, found?.revision ?? NO_REVISION); // a lost race is fine: another member has saved
    },
    async loadCheckpoint(pool) {
      return (await server.get(checkpointNameOf(pool)))?.text;
    },
    async members(pool) {
      return change(pool, (found, now) => ({
        result: (found?.members ?? []).map(({ id, claim, heardAt }) => ({
          id,
          size: claim.size,
          rank: claim.rank,
          ageMs: Math.max(0, now - heardAt),
        })),
      }));
    },
    close: () => server.close(),
  };
}

/** Name of the ramp checkpoint's document; no pool has this name. */
const checkpointNameOf = (pool: string): string => `${pool}\0checkpoint`;

/** The new state of a pool if it changes, and the result of the change. */
interface Mutation<T> {
  readonly state?: PoolState;
  readonly result: T;
}

const sleepFor = (clock: Clock, ms: Millis): Promise<void> =>
  new Promise((over) => {
    schedule(clock, clock.now() + ms, over, false);
  });

const findMember = ({ members }: PoolState, id: string): PoolState['members'][number] | undefined =>
  members.find((member) => member.id === id);

/** Compares everything except the times of syncs. */
const agreementFingerprint = ({ members, syncedAt, ...rest }: PoolState): string =>
  JSON.stringify([rest, members.map(({ id, claim }) => [id, claim])]);

/** Parses a document. @throws {UnavailableError} if it is not a pool: another application's data is not overwritten. */
function parsePoolState(text: string | undefined, pool: string): PoolState | undefined {
  if (text === undefined) return undefined;
  const state: unknown = tryParseJson(text);
  const times = ['round', 'quietTo', 'syncedAt', 'freedAt', 'turnFreedAt'];
  if (isRecord(state) && Array.isArray(state.members)) {
    if (times.every((name) => Number.isFinite(state[name]))) return state as unknown as PoolState;
  }
  throw new UnavailableError(`the pool ${pool}`, 'its key holds something else');
}
