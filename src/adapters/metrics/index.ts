export {
  type LimitingFields,
  type LimitingKind,
  type Logger,
  type LogOptions,
  logLimiting,
} from './log.ts';
export { type PrometheusExporter, type PrometheusOptions, prometheus } from './prometheus.ts';
