/** Aligns columns to the right, the first `names` of them to the left. */
export function alignColumns(
  rows: readonly (readonly string[])[],
  gap: string,
  names = 0,
): string[] {
  const widths = rows[0].map((_, n) => Math.max(...rows.map((cells) => cells[n].length)));
  return rows.map((cells) =>
    cells
      .map((cell, n) => (n < names ? cell.padEnd(widths[n]) : cell.padStart(widths[n])))
      .join(gap),
  );
}

/** A text of at most `columns` characters. */
export const cut = (text: string, columns: number): string =>
  text.length <= columns ? text : `${text.slice(0, columns - 1)}…`;
