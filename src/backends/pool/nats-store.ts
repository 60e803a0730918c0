/**
 * A pool in a key-value bucket of NATS JetStream, on a connection of the user's own.
 *
 *     const pods = pool(natsStore(await connect({ servers })), { name: 'enrich' });
 *
 * Each pool is one key (`backends/pool/cas-store.ts`). The server keeps with every revision when it was put, by its own
 * clock: so putting something and getting it back tells what time it is there, to within that round trip.
 *
 * The bucket is made if it is not there, now or after the server came back without it.
 */

import { type KV, Kvm } from '@nats-io/kv';
import type { NatsConnection } from '@nats-io/transport-node';
import { type Clock, isClock, type Millis, systemClock } from '../../core/clock.ts';
import { ClockOffset } from '../../core/clock-offset.ts';
import { withDeadline } from '../../core/deadline.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError, UnavailableError } from '../../core/errors.ts';
import { OptionReader } from '../../core/options.ts';
import { systemRandom } from '../../core/random.ts';
import { type CasServer, casStore } from './cas-store.ts';
import { BUCKET_NAME_EXPECTED, isBucketName } from './nats-bucket.ts';
import type { PoolStore } from './store.ts';

/** How a pool is kept in JetStream. */
export interface NatsStoreOptions {
  /** Default `sluice-pools`. */
  readonly bucket?: string;
  /** How long a sync may take. Default 500 ms. */
  readonly deadline?: Duration;
  readonly clock?: Clock;
}

/** What JetStream says if a key has another revision by now. */
const WRONG_REVISION_CODE = 10_071;

/** Whoever wants to know the time puts this key; what is in it does not matter. */
const TIME_KEY = 'time';

/** @throws {ConfigError} if the connection or the options make no sense. */
export function natsStore(connection: NatsConnection, options: NatsStoreOptions = {}): PoolStore {
  if (typeof connection?.request !== 'function') {
    throw new ConfigError('connection', 'one of @nats-io/transport-node', connection);
  }
  const fields = new OptionReader('', options);
  const bucket = fields.optional('bucket', isBucketName, BUCKET_NAME_EXPECTED) ?? 'sluice-pools';
  const deadlineMs = fields.duration('deadline', 500);
  const clock = fields.optional('clock', isClock, 'a clock') ?? systemClock;
  fields.finish();
  return casStore(
    natsCasServer(connection, bucket, deadlineMs, clock),
    deadlineMs,
    clock,
    systemRandom,
  );
}

function natsCasServer(
  connection: NatsConnection,
  bucket: string,
  deadlineMs: Millis,
  clock: Clock,
): CasServer {
  const clockOffset = new ClockOffset();
  const kvm = new Kvm(connection);
  let opening: Promise<KV> | undefined;

  /** Does something with the bucket. After a failure it is opened anew: it may not be there any more. */
  const using = async <T>(act: (kv: KV) => Promise<T>): Promise<T> => {
    if (connection.isClosed()) throw new UnavailableError('nats', 'the connection was closed');
    opening ??= kvm.create(bucket, { description: 'pools of processes that share limits' });
    const own = opening;
    try {
      return await withDeadline(clock, deadlineMs, 'nats', async () => act(await own));
    } catch (error) {
      if (opening === own) opening = undefined;
      throw error;
    }
  };
  return {
    name: 'nats',
    clockOffset,
    get: (pool) =>
      using(async (kv) => {
        const entry = await kv.get(bucketKeyOf(pool));
        if (!entry) return undefined;
        const revision = `${entry.revision}`;
        return entry.operation === 'PUT' ? { text: entry.string(), revision } : { revision };
      }),
    put: (pool, text, revision) =>
      using(async (kv) => {
        try {
          await kv.put(bucketKeyOf(pool), text, { previousSeq: Number(revision) });
          return true;
        } catch (error) {
          if ((error as { code?: unknown }).code === WRONG_REVISION_CODE) return false;
          throw error;
        }
      }),
    measureClock: () =>
      using(async (kv) => {
        const sentAt = clock.now();
        const revision = await kv.put(TIME_KEY, '');
        const entry = await kv.get(TIME_KEY);
        if (!entry || entry.revision < revision) return; // a replica that has yet to hear of it
        // Ours, or one that somebody else has put since; in whole milliseconds.
        const from = Math.floor(entry.created.getTime());
        clockOffset.observe({ from, to: from + 1 }, sentAt, clock.now());
      }),
    async close() {},
  };
}

/** A key knows few letters: names with others are written in base64. */
const bucketKeyOf = (pool: string): string =>
  /^[\w-]+$/.test(pool) ? `pool.${pool}` : `pool.=${Buffer.from(pool).toString('base64url')}`;
