import type { ListenAddress } from '../core/listen-address.ts';
import { toPrintable } from '../core/printable.ts';
import type { BackendModule } from '../daemon/backends/registry.ts';
import type { Config } from '../daemon/config/read.ts';
import type { ReloadResult } from '../daemon/protocols/http/admin-routes.ts';
import { describeChanges } from '../daemon/reload-changes.ts';
import {
  ADMIN_FLAGS,
  ADMIN_FLAGS_HELP,
  type AdminFlags,
  requestAdmin,
} from './framework/admin-client.ts';
import {
  absolutePathOf,
  type Command,
  CommandError,
  countOf,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  RefusedError,
  readFlags,
  realPathOf,
  TEXT,
  type Terminal,
  TimeoutError,
} from './framework/command.ts';
import { configPath, loadWithEnvironment, requireConfig } from './framework/configuration.ts';

export const reloadCommand = (modules: readonly BackendModule[]): Command => ({
  help: `usage: sluice reload [--config FILE] [options]

Makes a running daemon read its configuration again, and reports whether it could. With a mistake in the
configuration the daemon goes on with the one it has.

options:
  --config FILE  the configuration of the daemon; default $SLUICE_CONFIG. It is checked first, and says where
                 the daemon listens and which admin token it wants. It must be the file that the daemon reads
${ADMIN_FLAGS_HELP}

Without a configuration the admin token, if the daemon has one, comes from $SLUICE_ADMIN_TOKEN.
Exit code 0 if the configuration is in use, 1 if the daemon refused it, has no file or reads another one, 2 if the file
has mistakes, the daemon is unavailable, or the reload takes longer than 60 s. Limits that are gone, and new
ones, are named: a limit with another name is another limit. A warning names each limit that starts anew.

examples:
  sluice reload --config /etc/sluice/sluice.yaml
  sluice reload --at 127.0.0.1:7612`,

  async run(args, terminal) {
    const { config: file, ...flags } = readFlags(args, { ...ADMIN_FLAGS, config: TEXT });
    const path = configPath(file);
    const config =
      path === undefined ? undefined : requireConfig(loadWithEnvironment(path, modules));
    const address = flags.at === undefined && config ? addressFlagsOf(config, flags) : flags;
    try {
      const token = config?.admin.token;
      await requireSameFile(path, address, token); // a daemon that is unavailable fails here, soon
      const reply = await requestReload(address, token);
      report(reply as Reloaded, terminal);
      return EXIT_OK;
    } catch (error) {
      if (!(error instanceof RefusedError)) throw config ? withHint(error) : error;
      terminal.error(
        `sluice reload: refused, the last valid configuration stays\n${error.message}`,
      );
      return EXIT_CHECK_FAILED;
    }
  },
});

type Reloaded = Extract<ReloadResult, { ok: true }>;

/** Warnings that are printed; the daemon's log has all of them. */
const MAX_WARNINGS = 20;

function report(reloaded: Reloaded, terminal: Terminal): void {
  const { file = '', limits, kept, warnings, added = [], removed = [] } = reloaded; // an older daemon names none
  const counts = `${countOf(limits, 'limit')}, ${kept} keep their counts`;
  terminal.print(toPrintable(`reloaded ${file}: ${counts}`));
  const changes = describeChanges({ added, removed });
  if (changes !== undefined) terminal.print(toPrintable(changes));
  for (const { limit, warning } of warnings.slice(0, MAX_WARNINGS))
    terminal.error(toPrintable(`warning: ${limit}: ${warning}`));
  const hidden = warnings.length - MAX_WARNINGS;
  if (hidden > 0) terminal.error(`and ${countOf(hidden, 'warning')} more: see the daemon's log`);
}

/** A server that hangs delays a reload by seconds, a limit with many keys there by more. systemd waits for 90 s. */
const RELOAD_TIMEOUT_MS = 60_000;

async function requestReload(flags: AdminFlags, token?: string): Promise<unknown> {
  try {
    return await requestAdmin('POST', '/reload', flags, token, undefined, RELOAD_TIMEOUT_MS);
  } catch (error) {
    if (!(error instanceof TimeoutError)) throw error;
    const hint = 'its log says `reloaded` or `reload failed` when it ends';
    throw new TimeoutError(`the daemon has not finished within 60 s: ${hint}`);
  }
}

/** The daemon reads its own file, whatever file is named here. A daemon without one refuses the reload itself. */
async function requireSameFile(
  path: string | undefined,
  flags: AdminFlags,
  token?: string,
): Promise<void> {
  const page = await requestAdmin('GET', '/config', flags, token);
  const { file } = (page as { readonly config: { readonly file?: string } }).config;
  if (file === undefined || path === undefined || realPathOf(file) === realPathOf(path)) return;
  const expected = `expected --config to be the file that the daemon reads, ${file}`;
  throw new RefusedError(toPrintable(`${expected}, got ${absolutePathOf(path)}`));
}

/** The daemon was looked for where the file says, but it still has the file of before. */
const withHint = (error: unknown): unknown =>
  error instanceof CommandError && !(error instanceof TimeoutError)
    ? new CommandError(
        `${error.message}\nIf \`listen.http\` or \`admin.token\` has changed in the file, the daemon has the former: send it SIGHUP`,
      )
    : error;

/** Where the daemon of a configuration can be reached from this host; without TLS if there is a choice. */
function addressFlagsOf({ listen: { http } }: Config, flags: AdminFlags): AdminFlags {
  const address = http.find((each) => !usesTls(each)) ?? http[0];
  if (!address)
    throw new CommandError('the daemon has no HTTP listener: send it SIGHUP, and read its log');
  return { ...flags, at: reachableAt(address), ...(usesTls(address) && { tls: true }) };
}

const usesTls = (address: ListenAddress): boolean =>
  address.kind === 'tcp' && address.tls !== undefined;

/** A daemon that listens on all addresses is reached by loopback. */
function reachableAt(address: ListenAddress): string {
  if (address.kind === 'unix') return address.path;
  if (address.port === 0) throw new CommandError('the system picks the HTTP port (0): set --at');
  const host = ANY_HOSTS[address.host] ?? address.host;
  return `${host.includes(':') ? `[${host}]` : host}:${address.port}`;
}

const ANY_HOSTS: Readonly<Record<string, string>> = { '0.0.0.0': '127.0.0.1', '::': '::1' };
