/**
 * A log that stops nobody: lines go out as far as somebody takes them, now.
 *
 * A full disk, a reader that went away or one that does not read must not end a daemon, nor keep it
 * from answering. What cannot be written at once is lost, and the next line that can says how much.
 */

/** Writes some of these bytes and says how many; throws if nobody takes any just now. */
export type PartialWrite = (bytes: Buffer) => number;

export function bestEffortLog(write: PartialWrite): (line: string) => void {
  /** What is left of a line that went out in part. */
  let rest: Buffer = Buffer.alloc(0);
  let lost = 0;

  /** True if all of it is out. */
  const flush = (): boolean => {
    try {
      while (rest.length > 0) rest = rest.subarray(write(rest));
    } catch {
      // who reads on gets the rest of it with the next line
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
      rest = Buffer.alloc(0); // not begun: one that comes later begins a line of its own
    } else lost = 0;
  };
}
