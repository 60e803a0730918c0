/**
 * Keys are bytes. Inside the daemon a key is a *tag*: a text with one character for each of its bytes,
 * so that a key means the same whichever surface it came in by, UTF-8 or not, and whether it was
 * hashed as bytes or as a text.
 */

/** The tag of a key that came as text: JSON, a configuration file, a command line. */
export const toBinaryKey = (text: string): string =>
  isAscii(text) ? text : Buffer.from(text, 'utf8').toString('latin1');

/** A tag as people read it. Bytes that are no UTF-8 cannot be read, and show as a replacement mark. */
export const toKeyText = (key: string): string =>
  isAscii(key) ? key : Buffer.from(key, 'latin1').toString('utf8');

/** ASCII through and through: the same as text and as bytes. */
function isAscii(text: string): boolean {
  for (let n = 0; n < text.length; n++) if (text.charCodeAt(n) > 0x7f) return false;
  return true;
}
