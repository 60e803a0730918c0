/**
 * A log that never blocks: a line that cannot be written at once is dropped.
 *
 * A full disk, a closed pipe or a slow reader must neither stop a daemon nor delay its decisions. The next line that can
 * be written says how many were lost.
 */

/** Writes some of these bytes and returns how many; throws if none can be written now. */
export type PartialWrite = (bytes: Buffer) => number;

export function bestEffortLog(write: PartialWrite): (line: string) => void {
  /** The unwritten end of a line that was written in part. */
  let rest: Buffer = Buffer.alloc(0);
  let lost = 0;

  /** True if nothing is left to write. */
  const flush = (): boolean => {
    try {
      while (rest.length > 0) rest = rest.subarray(write(rest));
    } catch {
      // written with the next line
    }
    return rest.length === 0;
  };

  return (line) => {
    if (!flush()) {
      lost++;
      return;
    }
    const before = lost > 0 ? `(${lost} ${lost === 1 ? 'line' : 'lines'} lost)\n` : '';
    const bytes = Buffer.from(`${before}${line}\n`);
    rest = bytes;
    if (flush()) lost = 0;
    else if (rest.length === bytes.length) {
      lost++;
      rest = Buffer.alloc(0); // not begun: dropped as a whole
    } else lost = 0;
  };
}
