/** Names that people choose: they stand in headers, metrics, log lines and commands. */

import { ConfigError } from './errors.ts';

const NAME_PATTERN = /^[A-Za-z0-9_][\w.:-]{0,63}$/;

/** @throws {ConfigError} if it could not stand there. */
export function requireValidName(name: string, path: string): void {
  if (NAME_PATTERN.test(name)) return;
  const expected = 'named with letters, digits, _ - . or :, at most 64 of them';
  throw new ConfigError(path, expected, name);
}
