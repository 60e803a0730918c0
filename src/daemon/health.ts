/** The delay of the event loop is measured by a timer: it runs as much later than due as a request may have waited. */

import { type Clock, type Millis, schedule } from '../core/clock.ts';
import { counter, gauge, type MetricFamily } from '../core/metric-family.ts';
import { BucketCounter } from '../limiter/stats.ts';

const MEASURE_EVERY_MS: Millis = 20;

/** In seconds: from a loop that is idle to one that has stalled. */
const DELAY_BOUNDS: readonly number[] = [
  0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5,
];

export class Health {
  readonly eventLoopDelay = new BucketCounter(DELAY_BOUNDS);
  readonly #clock: Clock;
  readonly #startedAt: Millis;
  #cancelTimer = (): void => {};

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#startedAt = clock.now();
  }

  start(): void {
    const dueAt = this.#clock.now() + MEASURE_EVERY_MS;
    const measure = (): void => {
      this.eventLoopDelay.add(Math.max(0, this.#clock.now() - dueAt) / 1000);
      this.start();
    };
    this.#cancelTimer = schedule(this.#clock, dueAt, measure, false);
  }

  stop(): void {
    this.#cancelTimer();
  }

  families(): readonly MetricFamily[] {
    const { rss, heapUsed } = process.memoryUsage();
    const { user, system } = process.cpuUsage();
    return [
      gauge(
        'process_start_time_seconds',
        'When the process started, as a Unix time.',
        this.#startedAt / 1000,
      ),
      gauge('process_resident_memory_bytes', 'Memory of the process (RSS).', rss),
      gauge('nodejs_heap_size_used_bytes', 'Used heap of the JavaScript engine.', heapUsed),
      counter('process_cpu_seconds_total', 'CPU time of the process.', (user + system) / 1e6),
    ];
  }
}
