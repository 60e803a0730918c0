/** What a bucket of NATS may be called, also for those who have not loaded its package. */

export const BUCKET_NAME_EXPECTED = 'letters, digits, - and _';

export const isBucketName = (value: unknown): value is string =>
  typeof value === 'string' && /^[\w-]{1,200}$/.test(value);
