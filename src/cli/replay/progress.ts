import { type Clock, type Millis, systemClock } from '../../core/clock.ts';
import type { Terminal } from '../framework/command.ts';
import { progressBar } from '../framework/progress-bar.ts';
import type { LogBytes } from './chunks.ts';

const INTERVAL_MS: Millis = 100;

export class Progress {
  readonly #show: Terminal['progress'];
  readonly #clock: Clock;
  readonly #startedAt: Millis;
  #nextAt: Millis;

  constructor(
    { progress, columns }: Pick<Terminal, 'progress' | 'columns'>,
    clock: Clock = systemClock,
  ) {
    // A longer line would wrap, and could not be overwritten.
    this.#show = progress && ((words) => progress(words.slice(0, columns - 1)));
    this.#clock = clock;
    this.#startedAt = clock.now();
    this.#nextAt = this.#startedAt + INTERVAL_MS;
  }

  /** Called after every chunk. */
  update(what: string, logs: readonly Pick<LogBytes, 'done' | 'size'>[], lines: number): void {
    if (!this.#show) return;
    const now = this.#clock.now();
    if (now < this.#nextAt) return;
    this.#nextAt = now + INTERVAL_MS;
    const seconds = (now - this.#startedAt) / 1000;
    const done = logs.reduce((sum, log) => sum + log.done, 0);
    const total = logs.reduce((sum, log) => sum + (log.size ?? Number.NaN), 0);
    const rate = `${Math.round(lines / seconds).toLocaleString('en-US')} lines/s`;
    if (!(total > 0)) {
      this.#show(`${what}  ${formatBytes(done)}, ${rate}`);
      return;
    }
    const share = Math.min(1, done / total);
    const left = share > 0 ? Math.ceil((seconds * (1 - share)) / share) : 0;
    const bytes = `${formatBytes(done)} of ${formatBytes(total)}`;
    this.#show(`${what} ${progressBar(share)}  ${bytes}, ${rate}, ${left} s left`);
  }

  /** Removes the bar. */
  end(): void {
    this.#show?.('');
  }
}

function formatBytes(bytes: number): string {
  const [unit, suffix] = bytes >= 1e9 ? [1e9, 'GB'] : bytes >= 1e6 ? [1e6, 'MB'] : [1e3, 'kB'];
  return `${(bytes / unit).toFixed(1)} ${suffix}`;
}
