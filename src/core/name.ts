import { ConfigError } from './errors.ts';

const NAME_PATTERN = /^[A-Za-z0-9_][\w.:-]{0,63}$/;

/** @throws {ConfigError} if the name has other characters, or is too long. */
export function requireValidName(name: string, path: string): void {
  if (NAME_PATTERN.test(name)) return;
  const expected = 'a name of at most 64 letters, digits, _ - . or :';
  throw new ConfigError(path, expected, name);
}
