/** Valid names of a NATS key-value bucket. Separate from nats-store.ts, which needs the NATS package. */

export const BUCKET_NAME_EXPECTED = 'letters, digits, - and _';

export const isBucketName = (value: unknown): value is string =>
  typeof value === 'string' && /^[\w-]{1,200}$/.test(value);
