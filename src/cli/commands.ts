import { BACKEND_PAGES } from '../daemon/backends/pages.ts';
import type { BackendModule } from '../daemon/backends/registry.ts';
import type { CommandEntry } from './framework/command.ts';

type Modules = readonly BackendModule[];
type LoadModules = () => Promise<Modules>;

const beforePages = (backends: LoadModules): CommandEntry[] => [
  {
    name: 'serve',
    summary: 'runs the daemon, which decides for all clients of this host',
    load: async () => (await import('./serve.ts')).serveCommand(await backends()),
  },
  {
    name: 'check',
    summary: 'checks a key against the limits of a running daemon',
    load: async () => (await import('./check.ts')).check,
  },
  {
    name: 'report',
    summary: 'reports how an attempt of a key ended, for a lock-out',
    load: async () => (await import('./report.ts')).report,
  },
  {
    name: 'explain',
    summary: 'shows which limits apply to a key, and why',
    load: async () => (await import('./explain.ts')).explainCommand(await backends()),
  },
  {
    name: 'top',
    summary: 'shows which limits and keys of a running daemon are throttled now',
    load: async () => (await import('./top.ts')).top,
  },
  {
    name: 'why',
    summary: 'shows why a running daemon throttles a key, and what to do',
    load: async () => (await import('./why.ts')).why,
  },
  {
    name: 'config',
    summary: "validates a daemon's configuration",
    load: async () => (await import('./config.ts')).configCommands(await backends()),
  },
  {
    name: 'reload',
    summary: 'makes a running daemon read its configuration again',
    load: async () => (await import('./reload.ts')).reloadCommand(await backends()),
  },
];

const afterPages = (backends: LoadModules): CommandEntry[] => [
  {
    name: 'ban',
    summary: 'denies a key for a time',
    load: async () => (await import('./control.ts')).ban,
  },
  {
    name: 'unban',
    summary: 'ends a ban',
    load: async () => (await import('./control.ts')).unban,
  },
  {
    name: 'override',
    summary: 'gives a key another rate for a time',
    load: async () => (await import('./control.ts')).override,
  },
  {
    name: 'reset',
    summary: 'forgets what a key has consumed',
    load: async () => (await import('./control.ts')).reset,
  },
  {
    name: 'controls',
    summary: 'lists bans and overrides that were set at run time',
    load: async () => (await import('./control.ts')).controls,
  },
  {
    name: 'trace',
    summary: 'runs one limit over timed calls and prints every decision',
    load: async () => (await import('./trace.ts')).trace,
  },
  {
    name: 'replay',
    summary: 'what a limit would have done to the traffic of a log',
    load: async () => (await import('./replay/replay.ts')).replayCommand(await backends()),
  },
  {
    name: 'plan',
    summary: 'what a changed configuration would do to the traffic of a log',
    load: async () => (await import('./replay/plan.ts')).planCommand(await backends()),
  },
  {
    name: 'simulate',
    summary: 'simulates a limit on virtual time: tables, charts, JSON',
    load: async () => (await import('./simulate/simulate.ts')).simulate,
  },
];

type Page = Pick<BackendModule, 'name' | 'page'>;

/** One command for each backend that has a page: `sluice peers`. */
const pagesOf = (modules: readonly Page[]): CommandEntry[] =>
  modules.flatMap(({ name, page }) =>
    page
      ? {
          name,
          summary: `shows ${page.summary}`,
          load: async () => (await import('./backend-page.ts')).backendPageCommand(name, page),
        }
      : [],
  );

/** All commands; with these backends, or else those of the daemon, which are loaded by the commands that need them. */
export function commandsOf(modules?: Modules): readonly CommandEntry[] {
  const backends: LoadModules = async () =>
    modules ?? (await import('../daemon/backends/registry.ts')).BACKENDS;
  return [...beforePages(backends), ...pagesOf(modules ?? BACKEND_PAGES), ...afterPages(backends)];
}
