/**
 * Pool store on compare-and-swap: a pool is one document with a revision.
 *
 *     get ──▶ sync, local (`agreement.ts`) ──▶ put, if the revision is unchanged ──▶ response
 *      ▲                                          │ it has changed
 *      └──────────────────────────────────────────┘
 *
 * The agreement runs in the process that syncs, but only the server's clock counts. A process keeps two
 * bounds of it (`ClockOffset`) on a monotonic clock, and errs on the safe side:
 *
 *     written times        the upper bound: what was released, was released before that
 *     dropped members      silent for `memberTimeout`, plus the uncertainty of the clock
 *     responses            both bounds: where one second may be over and the next may not have begun,
 *                          the member uses nothing
 *
 * Revisions are expensive: they make other members retry, and etcd writes each to disk. So a member's last
 * sync is written a little ahead; until then a sync that changes nothing is answered from what was read.
 *
 * A put without a known outcome is a sync whose response was lost; one that executes late finds another
 * revision. A missing document is a store that lost its state, and one from the future belongs to a server
 * whose clock was set back: both begin with a quiet period.
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
  /** Undefined if it was deleted, where a deletion has a revision too. */
  readonly text?: string;
  readonly revision: string;
}

/** A server with versioned documents and a clock. Calls that miss their deadline reject. */
export interface CasServer {
  readonly name: string;
  readonly clockOffset: ClockOffset;
  get(pool: string): Promise<VersionedDocument | undefined>;
  /** False if the revision has changed. */
  put(pool: string, text: string, revision: string): Promise<boolean>;
  /** Measures its clock, at once or when that narrows the bounds most. */
  measureClock(): Promise<void>;
  close(): Promise<void>;
}

/** The clock is measured again above this uncertainty. */
const TARGET_UNCERTAINTY_MS: Millis = 10;
/** No sync happens above this uncertainty. */
const MAX_UNSURE_MS: Millis = 200;
/** Deadline for getting below it: a server may report whole seconds only. */
const MAX_MEASURE_MS: Millis = 3000;

/**
 * How long a sync without changes is not written, as a fraction of `memberTimeout`: per member, and at most.
 * So a small pool notices a crash soon, and a large one does not write more often than a small one.
 */
const UNWRITTEN_PER_MEMBER = 0.01;
const MAX_UNWRITTEN = 0.5;
/** After this fraction without any write, the next sync writes: at half of it the pool would assume an outage. */
const MAX_ALL_UNWRITTEN = 0.2;

/**
 * A lost race is retried after a random delay, whose bound doubles up to the maximum. With immediate retries
 * one of fifty members would succeed each time, slowed down by the other attempts.
 */
const RETRY_BACKOFF_MS: Millis = 4;
const MAX_BACKOFF_MS: Millis = 128;

/** A document this far in the future was written by another clock. */
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
    if (uncertaintyMs() > TARGET_UNCERTAINTY_MS) measure().catch(() => {}); // in the background; if it fails, the sync does too
  };

  /** Reads, changes and writes a pool; retries on a lost race until the deadline. */
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
      await server.put(name, text, found?.revision ?? NO_REVISION); // a lost race is fine: another member saved
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

/** The document of the ramp checkpoint; no pool has such a name. */
const checkpointNameOf = (pool: string): string => `${pool}\0checkpoint`;

/** The new state of a pool, if it changes, and the result of the change. */
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

/** Everything except the times of syncs. */
const agreementFingerprint = ({ members, syncedAt, ...rest }: PoolState): string =>
  JSON.stringify([rest, members.map(({ id, claim }) => [id, claim])]);

/** A document that is not a pool belongs to another application and is left as it is. */
function parsePoolState(text: string | undefined, pool: string): PoolState | undefined {
  if (text === undefined) return undefined;
  const state: unknown = tryParseJson(text);
  const times = ['round', 'quietTo', 'syncedAt', 'freedAt', 'turnFreedAt'];
  if (isRecord(state) && Array.isArray(state.members)) {
    if (times.every((name) => Number.isFinite(state[name]))) return state as unknown as PoolState;
  }
  throw new UnavailableError(`the pool ${pool}`, 'its key holds something else');
}
