import type { BackendModule } from '../../daemon/backends/registry.ts';
import {
  type ConfigOverride,
  fromEnvironment,
  fromFlags,
  type LoadResult,
  loadConfig,
} from '../../daemon/config/file.ts';
import type { Config } from '../../daemon/config/read.ts';
import {
  CommandError,
  type FlagValues,
  LIST,
  numberFlag,
  parseFlagValue,
  SWITCH,
  TEXT,
} from './command.ts';

/** The file of `--config`, or that of the environment. */
export const configPath = (flag: string | undefined): string | undefined =>
  flag ?? (process.env.SLUICE_CONFIG || undefined);

/** The flags of `serve` that set a part of the configuration. */
export const configFlags = (modules: readonly BackendModule[]) => ({
  line: LIST,
  resp: LIST,
  http: LIST,
  rate: TEXT,
  burst: TEXT,
  snapshot: TEXT,
  workers: TEXT,
  log: TEXT,
  'log-level': TEXT,
  override: SWITCH,
  ...Object.fromEntries(backendFlags(modules).map(({ name }) => [name, LIST])),
});

/** Flags that backends add. */
export const backendFlags = (modules: readonly BackendModule[]) =>
  modules.flatMap(({ overrides = [] }) => overrides.flatMap(({ flag }) => flag ?? []));

/** Settings of the environment and of flags, the flags last. */
export const overridesOf = (
  flags: FlagValues<'rate' | 'burst'> & { readonly override?: boolean | undefined },
  modules: readonly BackendModule[],
): readonly ConfigOverride[] =>
  [
    ...fromEnvironment(process.env, modules),
    ...fromFlags(flags, modules),
    ...limitOverride(flags),
  ].map((each) => ({ ...each, isForced: flags.override === true }));

/** `--rate` and `--burst` replace all limits of the configuration. */
function limitOverride(flags: FlagValues<'rate' | 'burst'>): ConfigOverride[] {
  if (flags.rate === undefined && flags.burst === undefined) return [];
  const burst = flags.burst === undefined ? {} : { burst: numberFlag(flags, 'burst', 0) };
  const value = { default: { bucket: { rate: parseFlagValue(flags.rate ?? '1/s'), ...burst } } };
  return [{ path: ['limits'], value, source: '--rate and --burst' }];
}

/** The configuration as `serve --override` would load it here, for commands that open no listener. */
export const loadWithEnvironment = (
  file: string | undefined,
  modules: readonly BackendModule[],
): LoadResult => loadConfig(file, overridesOf({ override: true }, modules), modules);

/** @throws {CommandError} with all mistakes of the configuration. */
export function requireConfig(loaded: LoadResult): Config {
  if ('config' in loaded) return loaded.config;
  throw new CommandError(
    loaded.problems.length === 1
      ? loaded.problems[0]
      : `the configuration has mistakes\n${loaded.problems.join('\n')}`,
  );
}
