/**
 * Finds the known name that a misspelt one was meant to be, for "did you mean …?" in errors.
 *
 * Two names match if they are equal but for case, `-` and `_`, or within an edit distance of 2. Names of up to three
 * characters may differ by one edit only: with two, almost any of them matches any other. Where no name is that close,
 * one that stands in the misspelt name as a word matches: `bucket` in `token-bucket` or `tokenBucket`.
 */

const MAX_EDITS = 2;
const SHORT_NAME_CHARS = 3;

/** Longer names are not compared: the distance costs the product of both lengths. */
const MAX_COMPARED_CHARS = 60;

function closestName(name: string, known: readonly string[]): string | undefined {
  const wanted = normalise(name);
  const maxEdits = wanted.length <= SHORT_NAME_CHARS ? 1 : MAX_EDITS;
  let best: string | undefined;
  let fewest = maxEdits + 1;
  for (const candidate of known) {
    const edits = editDistance(wanted, normalise(candidate));
    if (edits < fewest) [best, fewest] = [candidate, edits];
  }
  return best ?? wordsOf(name).find((word) => known.includes(word));
}

/** The words of a name that are long enough to mean something, in lower case. */
const wordsOf = (name: string): string[] =>
  name
    .split(/[-_]|(?=[A-Z])/)
    .filter(({ length }) => length > SHORT_NAME_CHARS)
    .map((word) => word.toLowerCase());

/** `did you mean X?`, with the closest of `known` as `format` writes it; undefined if none is close. */
export function suggestName(
  name: unknown,
  known: readonly string[],
  format: (close: string) => string = (close) => `\`${close}\``,
): string | undefined {
  const close = typeof name === 'string' ? closestName(name, known) : undefined;
  return close === undefined ? undefined : `did you mean ${format(close)}?`;
}

const normalise = (name: string): string => name.toLowerCase().replace(/[-_]/g, '');

/** Insertions, deletions, substitutions and swaps of neighbours that turn one string into the other. */
function editDistance(a: string, b: string): number {
  if (Math.max(a.length, b.length) > MAX_COMPARED_CHARS) return Infinity;
  if (Math.abs(a.length - b.length) > MAX_EDITS) return Infinity;
  let beforeLast: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, n) => n);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const isSame = a[i - 1] === b[j - 1];
      row[j] = Math.min(row[j - 1] + 1, last[j] + 1, last[j - 1] + (isSame ? 0 : 1));
      const isSwap = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (isSwap) row[j] = Math.min(row[j], beforeLast[j - 2] + 1);
    }
    [beforeLast, last] = [last, row];
  }
  return last[b.length];
}
