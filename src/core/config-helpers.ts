import { ConfigError } from './errors.ts';
import { isRecord, OptionReader } from './options.ts';

export const isString = (value: unknown): value is string => typeof value === 'string';

export const isNonEmptyString = (value: unknown): value is string =>
  typeof value === 'string' && value !== '';

/** A description in place of a value, such as a secret: an error shows it without quotes. */
export const described = (text: string): object => ({
  toJSON: () => undefined,
  toString: () => text,
});

/** Runs `create`; its errors name the field by its path in the whole configuration. */
export function withConfigPath<T>(path: string, create: () => T): T {
  try {
    return create();
  } catch (error) {
    throw error instanceof ConfigError ? error.prefixedWith(path) : error;
  }
}

/** A reader of a section. A value that is no object may be a secret, so the error does not show it. */
export function secretSection(path: string, value: unknown, expected: string): OptionReader {
  return OptionReader.collecting(path, isRecord(value) ? value : '…', expected);
}

/** Reads the field that is present, which must be one of those with a reader. */
export function readOnlyField<T>(
  fields: OptionReader,
  readers: Readonly<Record<string, (value: unknown, path: string) => T>>,
): T | undefined {
  const present = Object.keys(readers).filter((name) => fields.has(name));
  return fields.tryRead(() => {
    const [name] = present;
    if (present.length === 1) return readers[name](fields.get(name), fields.pathOf(name));
    const expected = `an object with one of ${Object.keys(readers).join(', ')}`;
    throw new ConfigError(fields.path, expected, described(present.join(' and ') || 'none'));
  });
}
