/** Subjects of NATS, apart from the transport, whose exports are public. */

/** A subject to publish to: tokens separated by dots, without wildcards. */
const SUBJECT_PATTERN = /^[^\s.*>]+(?:\.[^\s.*>]+)*$/;

export const isSubject = (value: unknown): value is string =>
  typeof value === 'string' && SUBJECT_PATTERN.test(value);
