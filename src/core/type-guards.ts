/** Type guards that option readers share. */

export const isNonEmptyString = (value: unknown): value is string =>
  typeof value === 'string' && value !== '';
