/** Longer keys are cut. */
const MAX_KEY_CHARS = 200;

/** A copy: the key may be a slice of a request and keep all of it alive. */
export const shortenKey = (key: string): string =>
  Buffer.from(key.length > MAX_KEY_CHARS ? key.slice(0, MAX_KEY_CHARS) : key, 'latin1').toString(
    'latin1',
  );
