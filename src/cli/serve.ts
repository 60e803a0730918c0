import { setFlagsFromString } from 'node:v8';
import { systemClock } from '../core/clock.ts';
import { formatListenAddress, type ListenAddress } from '../core/listen-address.ts';
import { createLog, type Log, type LogSettings } from '../core/log.ts';
import type { BackendModule } from '../daemon/backends/registry.ts';
import { loadConfig, variableNames } from '../daemon/config/file.ts';
import { loadInThread } from '../daemon/config/load-thread.ts';
import type { Config } from '../daemon/config/read.ts';
import { Daemon } from '../daemon/daemon.ts';
import { lockFile } from '../daemon/files/file-lock.ts';
import { WorkerPool } from '../daemon/workers/worker-pool.ts';
import { alignColumns } from './chart/table.ts';
import { exampleKey } from './example-key.ts';
import {
  absolutePathOf,
  type Command,
  countOf,
  EXIT_CANNOT_RUN,
  EXIT_OK,
  readFlags,
  TEXT,
  type Terminal,
} from './framework/command.ts';
import {
  backendFlags,
  configFlags,
  configPath,
  overridesOf,
  requireConfig,
} from './framework/configuration.ts';
import { logWarnings } from './framework/log-warnings.ts';
import { connectServiceManager } from './framework/service-manager.ts';

/** V8 may inline more than by default: with the default it leaves half of the calls of a check as calls. */
function inlineMore(): void {
  setFlagsFromString('--max-inlined-bytecode-size=2000');
  setFlagsFromString('--max-inlined-bytecode-size-cumulative=8000');
}

export const serveCommand = (modules: readonly BackendModule[]): Command => ({
  help: `usage: sluice serve [--config FILE] [options]

Runs the daemon: programs in any language check their rate limits over a socket.
Without a configuration it listens on loopback only, with a token bucket for every key: 1/s, burst 10.

options:
  --config FILE       the configuration; default $SLUICE_CONFIG. See docs/reference/configuration.md
  --line ADDRESS      line protocol; default 127.0.0.1:7610. A path is a Unix socket, off is none;
                      may be repeated
  --resp ADDRESS      RESP, the protocol of Redis; default 127.0.0.1:7611
  --http ADDRESS      HTTP; default 127.0.0.1:7612
  --rate RATE         rate for each key, such as 100/s; replaces all limits of a configuration
  --burst N           burst for each key
${backendFlags(modules).map(formatFlagHelp).join('')}\
  --snapshot FILE     keeps the state across a restart
  --workers N         processes that do the input and output of connections, for more than one core;
                      default 0. Limits stay exact: see "More than one core" in docs/reference/daemon.md
  --log text|json     format of the log, which goes to standard error
  --log-level LEVEL   debug, info (default), warn or error: lines of lower levels are left out

  --override          allows options and variables that weaken what the file says: a listener
                      without its TLS, open to more hosts, or not in the file

Precedence: options, then environment variables, then the file. The variables are
${wrapWords(variableNames(modules).join(', '))}.

signals:
  SIGHUP              reloads the configuration; so does sluice reload, which says whether it worked
  SIGTERM, SIGINT     answers pending requests, writes the snapshot, exits; twice: exits at once

examples:
  sluice serve
  sluice serve --rate 100/s --burst 20 --line 127.0.0.1:7610 --line /run/sluice.sock
  printf 'alice\\n' | nc -w 1 127.0.0.1 7610`,

  async run(args, terminal) {
    inlineMore();
    const flags = readFlags(args, { ...configFlags(modules), config: TEXT });
    const file = configPath(flags.config);
    const overrides = overridesOf(flags, modules);
    const config = requireConfig(loadConfig(file, overrides, modules));
    const load = () => loadInThread(file, overrides, modules);
    const hasLimitFlags = flags.rate !== undefined || flags.burst !== undefined;
    const origin = hasLimitFlags ? 'the command line' : (file ?? 'the defaults');
    const starting = (log: Log, workers: WorkerPool | undefined): Promise<Daemon> =>
      Daemon.start(config, {
        log,
        load,
        file: file === undefined ? undefined : absolutePathOf(file),
        version: terminal.version,
        backends: modules,
        workers,
        lock: lockFile,
      });
    return serveUntilStopped(config, starting, origin, terminal);
  },
});

/** The column in which the help of a flag begins. */
const HELP_COLUMN = 22;

const formatFlagHelp = ({ name, help }: { name: string; help: string }): string =>
  `${`  --${name} ADDRESS`.padEnd(HELP_COLUMN)}${help.replaceAll('\n', `\n${' '.repeat(HELP_COLUMN)}`)}\n`;

const wrapWords = (text: string): string => text.replace(/(.{1,99})(?: |$)/g, '$1\n').trimEnd();

async function serveUntilStopped(
  config: Config,
  start: (log: Log, workers: WorkerPool | undefined) => Promise<Daemon>,
  origin: string,
  terminal: Terminal,
): Promise<number> {
  let settings = (): LogSettings => config.log;
  const log = createLog(terminal.log, () => settings(), systemClock);
  logWarnings(process, log);
  const serviceManager = connectServiceManager(process.env);
  const workers = config.workers > 0 ? await WorkerPool.start(config.workers, log) : undefined;
  const starting = start(log, workers);
  starting.catch(() => workers?.close());
  const reload = (): void => void starting.then((daemon) => daemon.reload()).catch(() => {});
  process.on('SIGHUP', reload);
  if (terminal.releaseHangup?.()) reload();
  const daemon = await starting;
  settings = () => daemon.config.log;
  const stopSignal = new Promise<void>((resolve) => {
    process.once('SIGTERM', resolve);
    process.once('SIGINT', resolve);
  });
  printStartup(daemon, origin, terminal); // a reader of "ready" may send a signal at once
  serviceManager.notify(
    'READY=1',
    `STATUS=${countOf(daemon.config.limits.length, 'limit')} from ${origin}`,
  );
  await stopSignal;
  serviceManager.notify('STOPPING=1');
  log('info', 'stopping');
  const exitNow = (): never => process.exit(EXIT_CANNOT_RUN);
  process.once('SIGTERM', exitNow);
  process.once('SIGINT', exitNow);
  await daemon.stop();
  await workers?.close();
  log('info', 'stopped');
  return EXIT_OK;
}

/** A command to try each protocol with from a shell. It accepts any certificate. */
const EXAMPLE_COMMANDS: Readonly<
  Record<string, (listen: ListenAddress, key: string, config: Config) => string>
> = {
  line: (listen, key) => {
    if (listen.kind === 'unix') return `printf '${key}\\n' | nc -w 1 -U ${listen.path}`;
    if (!listen.tls) return `printf '${key}\\n' | nc -w 1 ${listen.host} ${listen.port}`;
    const client = `openssl s_client -quiet -no_ign_eof -connect ${formatListenAddress(listen)}`;
    return `(printf '${key}\\n'; sleep 1) | ${client}`;
  },
  resp: (listen, key, { resp: { password } }) => {
    const where =
      listen.kind === 'unix'
        ? `-s ${listen.path}`
        : `${listen.tls ? '--tls --insecure ' : ''}-h ${listen.host} -p ${listen.port}`;
    const auth = password === undefined ? '' : '--askpass ';
    return `redis-cli ${where} ${auth}CL.THROTTLE ${key} 9 1 1`;
  },
  http: (listen, key) => curlCommand(listen, `/check?key=${key}`),
};

function exampleCommand(
  config: Config,
  protocol: string,
  listen: ListenAddress,
  key: string,
): string {
  const example = config.backends.get(protocol)?.listener?.example;
  if (example) return `${curlCommand(listen, example.path)} ${example.flags}`;
  return EXAMPLE_COMMANDS[protocol]?.(listen, key, config) ?? '';
}

const curlCommand = (listen: ListenAddress, path: string): string =>
  listen.kind === 'unix'
    ? `curl -i --unix-socket ${listen.path} 'http://localhost${path}'`
    : `curl -i${listen.tls ? 'k' : ''} '${urlOf(listen, path)}'`;

const urlOf = (listen: ListenAddress & { kind: 'tcp' }, path: string): string =>
  `${listen.tls ? 'https' : 'http'}://${formatListenAddress(listen)}${path}`;

function printStartup(daemon: Daemon, origin: string, terminal: Terminal): void {
  const limits = countOf(daemon.config.limits.length, 'limit');
  const { workers } = daemon.config;
  const others = workers > 0 ? `, ${countOf(workers, 'worker')}` : '';
  terminal.print(`sluice ${terminal.version}, ${limits} from ${origin}${others}`);
  const key = exampleKey(daemon.config);
  const rows = daemon.addresses.map(({ protocol, listen }) => [
    protocol,
    formatListenAddress(listen),
    exampleCommand(daemon.config, protocol, listen, key),
  ]);
  for (const line of alignColumns(rows, '  ', 3)) terminal.print(`  ${line.trimEnd()}`);
  for (const { protocol, listen } of daemon.addresses)
    if (protocol === 'http' && listen.kind === 'tcp')
      terminal.print(`  page  ${urlOf(listen, '/page')}`);
  terminal.print('ready');
}
