/** `sluice serve`: the daemon, from a terminal or a service manager. */

import { systemClock } from '../core/clock.ts';
import { createLog, type LogFormat } from '../core/log.ts';
import {
  type ConfigOverride,
  fromEnvironment,
  loadConfig,
  peersOverride,
  splitAddresses,
} from '../daemon/config/file.ts';
import { formatListenAddress, type ListenAddress } from '../daemon/config/listen.ts';
import type { Config } from '../daemon/config/read.ts';
import { Daemon, type Surface } from '../daemon/daemon.ts';
import {
  type Command,
  EXIT_OK,
  EXIT_USAGE,
  numberFlag,
  parseUnitless,
  readArgs,
  type Terminal,
  UsageError,
} from './framework/command.ts';
import { configPath, requireConfig } from './framework/configuration.ts';

export const serve: Command = {
  name: 'serve',
  summary: 'answers "serve or throttle?" for everybody on this host',
  help: `usage: sluice serve [--config FILE] [options]

Runs the daemon: any language asks it, over a socket, and is answered in microseconds.
Without a configuration it listens on loopback only and allows every key 1 call a second, 10 at once.

options:
  --config FILE       limits and everything else; default $SLUICE_CONFIG. See docs/config.md
  --line ADDRESS      line protocol; default 127.0.0.1:7610. A path is a Unix socket, off is none;
                      may be given several times
  --resp ADDRESS      what Redis clients speak; default 127.0.0.1:7611
  --http ADDRESS      HTTP; default 127.0.0.1:7612
  --rate RATE         calls for each key, such as 100/s, in place of all limits of a configuration
  --burst N           and how many at once
  --peers ADDRESS     other daemons that keep the same limits with this one: a multicast group, or where
                      each of them listens, this one first; off is none; may be given several times. See
                      docs/peers.md
  --snapshot FILE     where to leave the state for a restart
  --log text|json     how to write the log, which goes to standard error

Options outweigh the environment (SLUICE_LINE, SLUICE_RESP, SLUICE_HTTP, SLUICE_ADMIN_TOKEN,
SLUICE_RESP_PASSWORD, SLUICE_SNAPSHOT, SLUICE_PEERS, SLUICE_PEERS_KEY, SLUICE_GROUPS_KEY, SLUICE_LOG,
SLUICE_UNMATCHED), and the environment outweighs the file.

signals:
  SIGHUP              reads the configuration again; a bad one changes nothing
  SIGTERM, SIGINT     answers what was asked, saves the state, ends; twice: ends at once

examples:
  sluice serve
  sluice serve --rate 100/s --burst 20 --line 127.0.0.1:7610 --line /run/sluice.sock
  printf 'alice\\n' | nc -w 1 127.0.0.1 7610`,

  async run(args, terminal) {
    const { values, positionals } = readArgs(args, {
      config: { type: 'string' },
      line: { type: 'string', multiple: true },
      resp: { type: 'string', multiple: true },
      http: { type: 'string', multiple: true },
      rate: { type: 'string' },
      burst: { type: 'string' },
      peers: { type: 'string', multiple: true },
      snapshot: { type: 'string' },
      log: { type: 'string' },
    });
    if (positionals.length > 0) {
      throw new UsageError(`expected no "${positionals[0]}"; see --help`);
    }
    const file = configPath(values.config);
    const load = () =>
      loadConfig(file, [...fromEnvironment(process.env), ...overridesFromFlags(values)]);
    const config = requireConfig(load());
    const isFlagged = values.rate !== undefined || values.burst !== undefined;
    const from = isFlagged ? 'the command line' : (file ?? 'the defaults');
    return serveUntilStopped(config, load, from, terminal);
  },
};

interface ServeFlags {
  readonly line?: string[] | undefined;
  readonly resp?: string[] | undefined;
  readonly http?: string[] | undefined;
  readonly rate?: string | undefined;
  readonly burst?: string | undefined;
  readonly peers?: string[] | undefined;
  readonly snapshot?: string | undefined;
  readonly log?: string | undefined;
}

/** What the command line says, as something that outweighs a file. */
function overridesFromFlags(flags: ServeFlags): ConfigOverride[] {
  const said: ConfigOverride[] = [];
  for (const surface of ['line', 'resp', 'http'] as const) {
    const given = flags[surface];
    if (given)
      said.push({
        path: ['listen', surface],
        value: splitAddresses(given.join(',')),
        source: `--${surface}`,
      });
  }
  if (flags.peers) said.push(peersOverride(flags.peers.join(','), '--peers'));
  if (flags.snapshot !== undefined) {
    said.push({ path: ['snapshot', 'file'], value: flags.snapshot, source: '--snapshot' });
  }
  if (flags.log !== undefined) said.push({ path: ['log'], value: flags.log, source: '--log' });
  if (flags.rate === undefined && flags.burst === undefined) return said;
  const burst = flags.burst === undefined ? {} : { burst: numberFlag('burst', flags.burst, 0) };
  const bucket = { rate: parseUnitless(flags.rate ?? '1/s'), ...burst };
  return [
    ...said,
    { path: ['limits'], value: { default: { bucket } }, source: '--rate and --burst' },
  ];
}

async function serveUntilStopped(
  config: Config,
  load: () => ReturnType<typeof loadConfig>,
  from: string,
  terminal: Terminal,
): Promise<number> {
  let format = (): LogFormat => config.log;
  const log = createLog(terminal.log, () => format(), systemClock);
  const starting = Daemon.start(config, { log, load, version: terminal.version });
  process.on('SIGHUP', () => void starting.then((daemon) => daemon.reload()).catch(() => {}));
  const daemon = await starting;
  format = () => daemon.config.log;
  const toldToStop = new Promise<void>((resolve) => {
    process.once('SIGTERM', resolve);
    process.once('SIGINT', resolve);
  });
  printStartup(daemon, from, terminal); // whoever reads that it is ready may stop it that instant
  await toldToStop;
  log('info', 'stopping');
  const atOnce = (): never => process.exit(EXIT_USAGE);
  process.once('SIGTERM', atOnce);
  process.once('SIGINT', atOnce);
  await daemon.stop();
  log('info', 'stopped');
  return EXIT_OK;
}

/** How to try each surface from a shell. A certificate need not be known there to see that it works. */
const EXAMPLE_COMMANDS: Readonly<Record<Surface, (listen: ListenAddress) => string>> = {
  line: (listen) => {
    if (listen.kind === 'unix') return `printf 'alice\\n' | nc -w 1 -U ${listen.path}`;
    if (!listen.tls) return `printf 'alice\\n' | nc -w 1 ${listen.host} ${listen.port}`;
    const client = `openssl s_client -quiet -no_ign_eof -connect ${formatListenAddress(listen)}`;
    return `(printf 'alice\\n'; sleep 1) | ${client}`;
  },
  resp: (listen) => {
    const where =
      listen.kind === 'unix'
        ? `-s ${listen.path}`
        : `${listen.tls ? '--tls --insecure ' : ''}-h ${listen.host} -p ${listen.port}`;
    return `redis-cli ${where} CL.THROTTLE alice 9 1 1`;
  },
  http: (listen) => curlCommand(listen, '/check?key=alice'),
  groups: (listen) =>
    `${curlCommand(listen, '/steal')} -H "Authorization: Bearer $SLUICE_GROUPS_KEY" -d '{"wants":[]}'`,
};

const curlCommand = (listen: ListenAddress, path: string): string =>
  listen.kind === 'unix'
    ? `curl -i --unix-socket ${listen.path} 'http://localhost${path}'`
    : `curl -i${listen.tls ? 'k' : ''} '${listen.tls ? 'https' : 'http'}://${formatListenAddress(listen)}${path}'`;

function printStartup(daemon: Daemon, from: string, terminal: Terminal): void {
  const { limits } = daemon.config;
  const counted = `${limits.length} ${limits.length === 1 ? 'limit' : 'limits'}`;
  terminal.print(`sluice ${terminal.version}, ${counted} from ${from}`);
  const shown = daemon.addresses.map(({ surface, listen }) => ({
    surface,
    at: formatListenAddress(listen),
    example: EXAMPLE_COMMANDS[surface](listen),
  }));
  const widest = (column: 'surface' | 'at'): number =>
    Math.max(0, ...shown.map((own) => own[column].length));
  for (const { surface, at, example } of shown) {
    const where = `${surface.padEnd(widest('surface'))}  ${at.padEnd(widest('at'))}`;
    terminal.print(`  ${where}  ${example}`);
  }
  terminal.print('ready');
}
