/** What a limit does, for people to see: figures for Prometheus, and lines for a log. */

export {
  type Limiting,
  type LimitingFields,
  type Logger,
  type LogOptions,
  logLimiting,
} from './log.ts';
export { type Prometheus, type PrometheusOptions, prometheus } from './prometheus.ts';
