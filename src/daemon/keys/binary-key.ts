/**
 * Keys are bytes. Inside the daemon a key is a *binary key*: a string with one character per byte. So a
 * key is the same by every protocol, valid UTF-8 or not, and hashes the same as bytes and as a string.
 */

/** The binary key of a text from JSON, a configuration file or a command line. */
export const toBinaryKey = (text: string): string =>
  isAscii(text) ? text : Buffer.from(text, 'utf8').toString('latin1');

/** A binary key as readable text; invalid UTF-8 shows as replacement characters. */
export const toKeyText = (key: string): string =>
  isAscii(key) ? key : Buffer.from(key, 'latin1').toString('utf8');

function isAscii(text: string): boolean {
  for (let n = 0; n < text.length; n++) if (text.charCodeAt(n) > 0x7f) return false;
  return true;
}
