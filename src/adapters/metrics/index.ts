/** `sluice/metrics`: metrics of limiters for Prometheus, and log lines about calls that they limit. */

export {
  type LimitingFields,
  type LimitingKind,
  type Logger,
  type LogOptions,
  logLimiting,
} from './log.ts';
export { type PrometheusExporter, type PrometheusOptions, prometheus } from './prometheus.ts';
