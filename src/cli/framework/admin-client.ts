/** Reads a page of a running daemon, for commands that show what is on it. */

import { type RequestOptions, request } from 'node:http';
import { request as requestTls } from 'node:https';
import { parseEndpoint } from '../../client/address.ts';
import {
  type Command,
  EXIT_OK,
  readArgs,
  readTextFile,
  type Terminal,
  UsageError,
} from './command.ts';

/** What `look` is told on the command line. */
const ADMIN_FLAGS = {
  at: { type: 'string' },
  tls: { type: 'boolean' },
  ca: { type: 'string' },
} as const;

const ADMIN_FLAGS_HELP = `  --at ADDRESS   where its HTTP surface is: host:port, a port or a path; default 127.0.0.1:7612
  --tls          speak TLS
  --ca FILE      whose certificates to trust, in PEM; default: those the system trusts. Implies --tls`;

interface AdminFlags {
  readonly at?: string | undefined;
  readonly tls?: boolean | undefined;
  readonly ca?: string | undefined;
}

const DEFAULT_HTTP_PORT = 7612;

const REQUEST_TIMEOUT_MS = 5000;

/** A page of a daemon is never larger. */
const MAX_PAGE_BYTES = 16 * 1024 * 1024;

/** A page of a daemon, and how a terminal shows it. */
export interface AdminPage<Shown> {
  /** What the command is called, and the page. */
  readonly name: string;
  readonly summary: string;
  /** What it shows, for its help. */
  readonly description: string;
  /** What is said if the daemon has nothing to show there: its page has no `id` then. */
  readonly emptyMessage: string;
  render(shown: Shown, terminal: Terminal): void;
}

/** The command that shows a page. */
export const adminPageCommand = <Shown extends { readonly id: unknown }>(
  page: AdminPage<Shown>,
): Command => ({
  name: page.name,
  summary: page.summary,
  help: `usage: sluice ${page.name} [options]

${page.description}

options:
${ADMIN_FLAGS_HELP}
  --json         everything it knows, for machines

The admin token, if the daemon wants one, comes from $SLUICE_ADMIN_TOKEN.

example:
  sluice ${page.name} --at 127.0.0.1:7612`,

  async run(args, terminal) {
    const { values, positionals } = readArgs(args, { ...ADMIN_FLAGS, json: { type: 'boolean' } });
    if (positionals.length > 0) {
      throw new UsageError(`expected no "${positionals[0]}"; see --help`);
    }
    const shown = (await fetchPage(`/${page.name}`, values)) as Shown | { readonly id?: undefined };
    if (values.json) terminal.print(JSON.stringify(shown, undefined, 2));
    else if (shown.id !== undefined) page.render(shown, terminal);
    else terminal.print(page.emptyMessage);
    return EXIT_OK;
  },
});

/** What others have chosen, such as a name: it need not reach into this terminal. */
export const toPrintable = (text: string): string => text.replace(/\p{Cc}/gu, '?');

/** The page as JSON. @throws {UsageError} if it cannot be had, which says why and what to do. */
async function fetchPage(page: string, flags: AdminFlags): Promise<unknown> {
  const { at = `127.0.0.1:${DEFAULT_HTTP_PORT}` } = flags;
  const { status, text } = await httpGet(page, at, flags);
  if (status === 200) {
    try {
      return JSON.parse(text);
    } catch {
      throw new UsageError(`what answers at ${at} is no daemon of sluice`);
    }
  }
  if (status === 401 || status === 403) {
    const which = process.env.SLUICE_ADMIN_TOKEN ? 'another' : 'an';
    throw new UsageError(`${at} wants ${which} admin token; it comes from $SLUICE_ADMIN_TOKEN`);
  }
  throw new UsageError(`${at} answers ${status} to ${page}: is it a daemon of this version?`);
}

function httpGet(
  path: string,
  at: string,
  { tls = false, ca }: AdminFlags,
): Promise<{ readonly status: number; readonly text: string }> {
  const token = process.env.SLUICE_ADMIN_TOKEN;
  const options: RequestOptions = {
    ...socketOptionsOf(at),
    path,
    agent: false,
    headers: token ? { authorization: `Bearer ${token}` } : {},
    signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS),
  };
  return new Promise((resolve, reject) => {
    const fail = (error: Error): void => {
      const { code, name } = error as NodeJS.ErrnoException;
      const isLate = name === 'AbortError';
      const why = isLate ? `no answer within ${REQUEST_TIMEOUT_MS} ms` : (code ?? error.message);
      reject(new UsageError(`sluice at ${at} is out of reach: ${why}`));
    };
    const isTls = tls || ca !== undefined;
    const asked = isTls
      ? requestTls({ ...options, ...(ca !== undefined && { ca: readTextFile(ca) }) })
      : request(options);
    asked.on('error', fail);
    asked.on('response', (response) => {
      let text = '';
      response.setEncoding('utf8');
      response.on('error', fail);
      response.on('data', (piece: string) => {
        text += piece;
        if (text.length > MAX_PAGE_BYTES) response.destroy(new Error('too long an answer'));
      });
      response.on('end', () => resolve({ status: response.statusCode ?? 0, text }));
    });
    asked.end();
  });
}

function socketOptionsOf(at: string): RequestOptions {
  const place = parseEndpoint(at, '--at', DEFAULT_HTTP_PORT);
  return 'path' in place ? { socketPath: place.path } : place;
}
