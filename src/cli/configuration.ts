/** Finds and reads the daemon's configuration for commands that need it. */

import { type Loaded, loadConfig, type Outweighing } from '../daemon/config/file.ts';
import type { Config } from '../daemon/config/read.ts';
import { UsageError } from './command.ts';

/** The file that was named, or the one the environment names. */
export const configFile = (named: string | undefined): string | undefined =>
  named ?? (process.env.SLUICE_CONFIG || undefined);

/** The configuration; what is wrong with it is the user's to fix. */
export function requireConfig(
  file: string | undefined,
  outweighing: readonly Outweighing[] = [],
): Config {
  return configOf(loadConfig(file, outweighing));
}

export function configOf(loaded: Loaded): Config {
  if ('config' in loaded) return loaded.config;
  throw new UsageError(
    loaded.problems.length === 1
      ? loaded.problems[0]
      : `${loaded.problems.length} problems\n${loaded.problems.join('\n')}`,
  );
}
