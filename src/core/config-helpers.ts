/** Helpers that readers of configuration sections share. */

import { ConfigError } from './errors.ts';

export const isFunction = <T extends (...args: never[]) => unknown>(value: unknown): value is T =>
  typeof value === 'function';

export const isNonEmptyString = (value: unknown): value is string =>
  typeof value === 'string' && value !== '';

/** Runs `create`; its errors name the field by its path in the whole configuration. */
export function withConfigPath<T>(path: string, create: () => T): T {
  try {
    return create();
  } catch (error) {
    throw error instanceof ConfigError ? error.prefixedWith(path) : error;
  }
}
