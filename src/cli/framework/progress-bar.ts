const BAR_COLUMNS = 20;

/** `█████░░░░░ 50 %`. */
export function progressBar(fraction: number): string {
  const full = Math.floor(fraction * BAR_COLUMNS);
  const bar = '█'.repeat(full) + '░'.repeat(BAR_COLUMNS - full);
  return `${bar} ${Math.floor(fraction * 100)} %`;
}
