/** Finds and reads the daemon's configuration for commands that need it. */

import { fromEnvironment, type LoadResult, loadConfig } from '../../daemon/config/file.ts';
import type { Config } from '../../daemon/config/read.ts';
import { UsageError } from './command.ts';

/** The file that was named, or the one the environment names. */
export const configPath = (named: string | undefined): string | undefined =>
  named ?? (process.env.SLUICE_CONFIG || undefined);

/** What `serve` would be told here: secrets stand in the environment more often than in a file. */
export const loadWithEnvironment = (file: string | undefined): LoadResult =>
  loadConfig(file, fromEnvironment(process.env));

/** The configuration; what is wrong with it is the user's to fix. */
export function requireConfig(loaded: LoadResult): Config {
  if ('config' in loaded) return loaded.config;
  throw new UsageError(
    loaded.problems.length === 1
      ? loaded.problems[0]
      : `the configuration has mistakes\n${loaded.problems.join('\n')}`,
  );
}
