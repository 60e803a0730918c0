/** What a server keeps for us, read as JSON: it may be anything, and nobody's mistake here. */

/** Undefined if it is not JSON at all. */
export function tryParseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
