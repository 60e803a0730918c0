import type { Clock } from './clock.ts';
import { toPrintableLine } from './printable.ts';

/** From the least to the most severe. */
export const LOG_LEVELS = ['debug', 'info', 'warn', 'error'] as const;

export type LogLevel = (typeof LOG_LEVELS)[number];
export type LogFields = Readonly<Record<string, string | number | boolean>>;
export type Log = (level: LogLevel, message: string, fields?: LogFields) => void;

export type LogFormat = 'text' | 'json';

export interface LogSettings {
  readonly format: LogFormat;
  /** Lines of lower levels are left out. */
  readonly level: LogLevel;
}

export function createLog(
  write: (line: string) => void,
  settings: () => LogSettings,
  clock: Clock,
): Log {
  return (level, message, fields = {}) => {
    const { format, level: lowest } = settings();
    if (LOG_LEVELS.indexOf(level) < LOG_LEVELS.indexOf(lowest)) return;
    const time = new Date(clock.now()).toISOString();
    const line =
      format === 'json'
        ? JSON.stringify({ time, level, message, ...fields })
        : `${time} ${level} ${formatLine(message, fields)}`;
    write(toPrintableLine(line));
  };
}

/** A message and its fields as one line: `listening protocol=line`. */
export const formatLine = (message: string, fields: LogFields): string =>
  [message, ...Object.entries(fields).map(formatField)].join(' ');

const formatField = ([name, value]: [string, unknown]): string =>
  `${name}=${quoteIfNeeded(String(value))}`;

/** Quotes values with spaces and control characters, newlines among them. */
const quoteIfNeeded = (text: string): string =>
  /^[^\s"=\p{Cc}]+$/u.test(text) ? text : JSON.stringify(text);
