/**
 * Pool store in a key-value bucket of NATS JetStream, on the user's connection.
 *
 *     const pods = pool(natsStore(await connect({ servers })), { name: 'enrich' });
 *
 * Each pool is one key (`cas-store.ts`). The server stamps every revision with its own clock, so a put followed by a
 * get measures that clock, with the round trip as uncertainty.
 *
 * The bucket is created if it is missing, even after the server lost it.
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

/** Options of `natsStore`. */
export interface NatsStoreOptions {
  /** Name of the bucket. Default `sluice-pools`. */
  readonly bucket?: string | undefined;
  /** Deadline of a sync. Default 500 ms. */
  readonly deadline?: Duration | undefined;
  readonly clock?: Clock | undefined;
}

/** JetStream's error code for a changed revision. */
const WRONG_REVISION_CODE = 10_071;

/** The key whose puts measure the clock; its value is empty. */
const TIME_KEY = 'time';

/** Creates a store in NATS. @throws {ConfigError} if the connection or an option is invalid. */
export function natsStore(connection: NatsConnection, options: NatsStoreOptions = {}): PoolStore {
  if (typeof connection?.request !== 'function') {
    throw new ConfigError('connection', 'one of @nats-io/transport-node', connection);
  }
  const reader = new OptionReader('', options);
  const bucket = reader.optional('bucket', isBucketName, BUCKET_NAME_EXPECTED) ?? 'sluice-pools';
  const deadlineMs = reader.duration('deadline', 500);
  const clock = reader.optional('clock', isClock, 'a clock') ?? systemClock;
  reader.finish();
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

  /** Runs an operation on the bucket. After a failure the bucket is opened again, because it may have been deleted. */
  const using = async <T>(act: (kv: KV) => Promise<T>): Promise<T> => {
    if (connection.isClosed()) throw new UnavailableError('nats', 'the connection was closed');
    opening ??= kvm.create(bucket, { description: 'pools of processes that divide limits' });
    const opened = opening;
    try {
      return await withDeadline(clock, deadlineMs, 'nats', async () => act(await opened));
    } catch (error) {
      if (opening === opened) opening = undefined;
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
        if (!entry || entry.revision < revision) return; // from an outdated replica
        // The entry is of this put, or of a later one of another member; its time is in whole milliseconds.
        const from = Math.floor(entry.created.getTime());
        clockOffset.observe({ from, to: from + 1 }, sentAt, clock.now());
      }),
    async close() {},
  };
}

/** The key of a pool. Keys allow few characters, so other names are encoded in base64url. */
const bucketKeyOf = (pool: string): string =>
  /^[\w-]+$/.test(pool) ? `pool.${pool}` : `pool.=${Buffer.from(pool).toString('base64url')}`;
