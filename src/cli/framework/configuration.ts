/** Finds and reads the daemon's configuration for commands that need it. */

import type { BackendModule } from '../../daemon/backends/registry.ts';
import { fromEnvironment, type LoadResult, loadConfig } from '../../daemon/config/file.ts';
import type { Config } from '../../daemon/config/read.ts';
import { CommandError } from './command.ts';

/** The file of `--config`, or that of the environment. */
export const configPath = (flag: string | undefined): string | undefined =>
  flag ?? (process.env.SLUICE_CONFIG || undefined);

/** The configuration as `serve` would load it here: secrets often stand in the environment. */
export const loadWithEnvironment = (
  file: string | undefined,
  modules: readonly BackendModule[],
): LoadResult => loadConfig(file, fromEnvironment(process.env, modules), modules);

/** @throws {CommandError} with all mistakes of the configuration. */
export function requireConfig(loaded: LoadResult): Config {
  if ('config' in loaded) return loaded.config;
  throw new CommandError(
    loaded.problems.length === 1
      ? loaded.problems[0]
      : `the configuration has mistakes\n${loaded.problems.join('\n')}`,
  );
}
