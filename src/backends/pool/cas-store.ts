/**
 * A store where a pool is one document, which is only replaced if nobody else has replaced it meanwhile.
 *
 *     get ──▶ sync, here (`agreement.ts`) ──▶ put, if the revision is still the same ──▶ answer
 *      ▲                                          │ it is not
 *      └──────────────────────────────────────────┘
 *
 * So the rule runs in whichever process syncs, and time would be that process's: but nobody's clock counts
 * save the server's. It says what time it is as well as it can (`Ahead`), a process keeps two bounds of it on a
 * clock that never jumps, and errs where it does no harm:
 *
 *     what is written         the latest it can be there: what was given up, was given up before that
 *     who is gone             who was silent for `stale`, and for as long as time is not exactly known
 *     what a member is told   both bounds: where one second may be over and the next may not have begun,
 *                             it uses nothing
 *
 * Revisions are dear: members get into each other's way with them, and etcd writes each to disk. So a member is
 * written down as heard until a little later; before that, a sync that changes nothing is answered by what was read.
 *
 * A put that nobody heard the outcome of is a sync whose answer was lost; one that is carried out late finds
 * another revision. A document that is not there is a store that has forgotten everything, and one from the
 * future is of a server whose clock was set back: both begin quiet.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import type { ClockOffset } from '../../core/clock-offset.ts';
import { withDeadline } from '../../core/deadline.ts';
import { UnavailableError } from '../../core/errors.ts';
import { tryParseJson } from '../../core/json.ts';
import { isRecord } from '../../core/options.ts';
import type { Random } from '../../core/random.ts';
import {
  type AgreementOptions,
  applyLeave,
  applySync,
  createPoolState,
  type PoolState,
} from './agreement.ts';
import type { PoolStore } from './store.ts';

export interface VersionedDocument {
  /** Undefined if somebody has deleted it, where that too is a revision. */
  readonly text?: string;
  readonly revision: string;
}

/** The revision of what is not there. */
export const NO_REVISION = '0';

/** A server that keeps texts, and has a clock. Whatever it does not answer in time is rejected. */
export interface CasServer {
  readonly name: string;
  /** What is known of its clock. */
  readonly clockOffset: ClockOffset;
  /** What was put last, if anything. */
  get(pool: string): Promise<VersionedDocument | undefined>;
  /** False if it has another revision by now. */
  put(pool: string, text: string, revision: string): Promise<boolean>;
  /** Learns more of its clock: at once, or when that will tell most. */
  measureClock(): Promise<void>;
  close(): Promise<void>;
}

/** Time is looked at again if it is not known better than this, */
const TARGET_UNCERTAINTY_MS: Millis = 10;
/** and nothing is done before it is known at least so well, */
const MAX_UNSURE_MS: Millis = 200;
/** which takes no longer than that: a clock may only tell whole seconds. */
const MAX_LEARN_MS: Millis = 3000;

/**
 * For this part of `stale` for each member, up to that part, it is not worth a revision that one of them was heard again. So
 * few who share a pool soon miss one of them, and many do not write more often than fewer.
 */
const UNWRITTEN_PER_MEMBER = 0.01;
const MAX_UNWRITTEN = 0.5;
/** If nobody wrote for this part of it, somebody does: by half of `stale` it would be taken for an outage. */
const MAX_ALL_UNWRITTEN = 0.2;

/**
 * Who was not fast enough tries again after a while by chance, of up to so long; twice as long each time, as far as that.
 * If everybody tried again at once, one of fifty would get through each time, and the others would slow it down.
 */
const RETRY_BACKOFF_MS: Millis = 4;
const MAX_AGAIN_MS: Millis = 128;

/** A document that is so far in the future was written by another clock. */
const MAX_AHEAD_MS: Millis = 1000;

export function casStore(
  server: CasServer,
  deadlineMs: Millis,
  clock: Clock,
  random: Random,
): PoolStore {
  let learning: Promise<void> | undefined;
  const uncertaintyMs = (): Millis => {
    const { min, max } = server.clockOffset.boundsAt(clock.now());
    return max - min;
  };
  const learn = (): Promise<void> => {
    learning ??= server.measureClock().finally(() => {
      learning = undefined;
    });
    return learning;
  };
  const knowTime = async (): Promise<void> => {
    const giveUpAt = clock.now() + MAX_LEARN_MS;
    while (!(uncertaintyMs() <= MAX_UNSURE_MS)) {
      if (clock.now() > giveUpAt) throw new UnavailableError(server.name, 'its clock is not known');
      await learn();
    }
    if (uncertaintyMs() > TARGET_UNCERTAINTY_MS) learn().catch(() => {}); // meanwhile; if it fails, so does the rest
  };

  /** Changes a pool: again if another was faster, until it is too late. */
  const change = async <T>(
    pool: string,
    act: (found: PoolState | undefined, now: Millis) => Mutation<T>,
  ): Promise<T> => {
    await knowTime();
    return withDeadline(clock, deadlineMs, server.name, async (isOver) => {
      for (
        let againMs = RETRY_BACKOFF_MS;
        !isOver();
        againMs = Math.min(2 * againMs, MAX_AGAIN_MS)
      ) {
        const found = await server.get(pool);
        const now = clock.now() + server.clockOffset.boundsAt(clock.now()).max;
        const { state, result } = act(parsePoolState(found?.text, pool), now);
        if (!state) return result;
        const text = JSON.stringify(state);
        if (await server.put(pool, text, found?.revision ?? NO_REVISION)) return result;
        await sleepFor(clock, againMs * random());
      }
      throw new UnavailableError(server.name, 'others were faster');
    });
  };

  return {
    name: server.name,
    async sync(pool, request, options) {
      const answer = await change(pool, (found, now) => {
        const surely: AgreementOptions = {
          ...options,
          memberTimeoutMs: options.memberTimeoutMs + uncertaintyMs(),
        };
        const isUsable = found && found.syncedAt <= now + MAX_AHEAD_MS;
        const state = isUsable ? found : createPoolState(now, surely);
        const before = agreementFingerprint(state);
        const writtenTo = findMember(state, request.id)?.heardAt ?? -Infinity;
        const isDue =
          now >= writtenTo || now - state.syncedAt >= MAX_ALL_UNWRITTEN * options.memberTimeoutMs;
        const told = applySync(state, request, now, surely);
        const isNews = isDue || agreementFingerprint(state) !== before;
        if (!told || !isNews) return { result: told };
        const part = Math.min(UNWRITTEN_PER_MEMBER * state.members.length, MAX_UNWRITTEN);
        const own = findMember(state, request.id);
        if (own) own.heardAt = now + part * options.memberTimeoutMs;
        return { state, result: told };
      });
      const now = clock.now() + server.clockOffset.boundsAt(clock.now()).min;
      return answer && { ...answer, now, clockUncertaintyMs: uncertaintyMs() };
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
      await server.put(name, text, found?.revision ?? NO_REVISION); // or another was faster
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

/** Where it is left what others want to know later: no pool is called so. */
const checkpointNameOf = (pool: string): string => `${pool}\0note`;

/** What becomes of a pool, if anything, and what is told then. */
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

/** All but when somebody was heard. */
const agreementFingerprint = ({ members, syncedAt, ...rest }: PoolState): string =>
  JSON.stringify([rest, members.map(({ id, claim }) => [id, claim])]);

/** Whatever the key holds that is not a pool is somebody else's, and stays. */
function parsePoolState(text: string | undefined, pool: string): PoolState | undefined {
  if (text === undefined) return undefined;
  const state: unknown = tryParseJson(text);
  const times = ['round', 'quietTo', 'syncedAt', 'freedAt', 'turnFreedAt'];
  if (isRecord(state) && Array.isArray(state.members)) {
    if (times.every((name) => Number.isFinite(state[name]))) return state as unknown as PoolState;
  }
  throw new UnavailableError(`the pool ${pool}`, 'its key holds something else');
}
