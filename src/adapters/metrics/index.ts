/** What a limit does, for people to see: figures for Prometheus, and lines for a log. */

export {
  type LimitingFields,
  type LimitingKind,
  type Logger,
  type LogOptions,
  logLimiting,
} from './log.ts';
export { type PrometheusExporter, type PrometheusOptions, prometheus } from './prometheus.ts';
