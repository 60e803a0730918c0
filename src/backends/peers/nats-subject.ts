/** NATS subjects. Separate from the transport, whose exports are public. */

/** A subject for publishing: tokens separated by dots, without wildcards. */
const SUBJECT_PATTERN = /^[^\s.*>]+(?:\.[^\s.*>]+)*$/;

export const isSubject = (value: unknown): value is string =>
  typeof value === 'string' && SUBJECT_PATTERN.test(value);
