/** What a subject of NATS may be called, also for those who have not loaded its package. */

/** One that can be published to: words with dots between them, none of them a wildcard. */
const SUBJECT_PATTERN = /^[^\s.*>]+(?:\.[^\s.*>]+)*$/;

export const isSubject = (value: unknown): value is string =>
  typeof value === 'string' && SUBJECT_PATTERN.test(value);
