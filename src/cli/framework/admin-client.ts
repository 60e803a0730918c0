import { type RequestOptions, request } from 'node:http';
import { request as requestTls } from 'node:https';
import { parseEndpoint } from '../../client/address.ts';
import {
  CommandError,
  RefusedError,
  type readFlags,
  readTextFile,
  SWITCH,
  TEXT,
  TimeoutError,
} from './command.ts';

/** The flags of every command that reads an admin page. */
export const ADMIN_FLAGS = { at: TEXT, tls: SWITCH, ca: TEXT };

export const ADMIN_FLAGS_HELP = `  --at ADDRESS   HTTP address of the daemon: host:port, a port or a socket path; default 127.0.0.1:7612
  --tls          connect with TLS
  --ca FILE      trusted certificate authorities, in PEM; default: those of the system. Implies --tls`;

export type AdminFlags = ReturnType<typeof readFlags<typeof ADMIN_FLAGS>>;

const DEFAULT_HTTP_PORT = 7612;

const REQUEST_TIMEOUT_MS = 5000;

const MAX_PAGE_BYTES = 16 * 1024 * 1024;

/** The HTTP address that the flags name. */
export const adminAddressOf = ({ at = `127.0.0.1:${DEFAULT_HTTP_PORT}` }: AdminFlags): string => at;

/** The page as JSON. @throws {CommandError} with the reason and what to do. */
export const fetchPage = (page: string, flags: AdminFlags): Promise<unknown> =>
  requestAdmin('GET', page, flags);

/** The response as JSON. @throws {CommandError} with the reason and what to do. */
export async function requestAdmin(
  method: 'GET' | 'POST',
  page: string,
  flags: AdminFlags,
  token = process.env.SLUICE_ADMIN_TOKEN,
  fields?: Readonly<Record<string, unknown>>,
  timeoutMs = REQUEST_TIMEOUT_MS,
): Promise<unknown> {
  const at = adminAddressOf(flags);
  const { status, text } = await sendRequest(
    method,
    page,
    at,
    token,
    flags,
    fields && JSON.stringify(fields),
    timeoutMs,
  );
  if (status === 200) {
    try {
      return JSON.parse(text);
    } catch {
      throw new CommandError(`the server at ${at} is not a sluice daemon: its reply is not JSON`);
    }
  }
  if (status === 401) {
    const which = token ? 'another' : 'an';
    throw new CommandError(`${at} requires ${which} admin token; set $SLUICE_ADMIN_TOKEN`);
  }
  const detail = problemDetailOf(text);
  if (fields && detail !== undefined) throw new CommandError(detail);
  if (status === 422 && detail !== undefined) throw new RefusedError(detail);
  if (status === 403 && detail !== undefined)
    throw new CommandError(`${at} refused ${page}: ${detail}`);
  const reason = detail ?? 'is it a daemon of this version?';
  throw new CommandError(`${at} replied with status ${status} to ${page}: ${reason}`);
}

/** The `detail` of an RFC 9457 problem, if the body is one. */
function problemDetailOf(text: string): string | undefined {
  try {
    const { detail } = JSON.parse(text);
    return typeof detail === 'string' ? detail : undefined;
  } catch {
    return undefined;
  }
}

const HINTS: Readonly<Record<string, string>> = {
  ECONNREFUSED: '; start it with `sluice serve`, or set --at',
  ECONNRESET: '; if this port has TLS, set `--tls`',
};

function sendRequest(
  method: string,
  path: string,
  at: string,
  token: string | undefined,
  { tls = false, ca }: AdminFlags,
  body: string | undefined,
  timeoutMs: number,
): Promise<{ readonly status: number; readonly text: string }> {
  const options: RequestOptions = {
    ...socketOptionsOf(at),
    method,
    path,
    agent: false,
    headers: {
      ...(token && { authorization: `Bearer ${token}` }),
      ...(body !== undefined && { 'content-type': 'application/json' }),
    },
    signal: AbortSignal.timeout(timeoutMs),
  };
  const isTls = tls || ca !== undefined;
  return new Promise((resolve, reject) => {
    const fail = (error: Error): void => {
      const { code, name } = error as NodeJS.ErrnoException;
      const isTimeout = name === 'AbortError';
      const late = `no reply within ${timeoutMs} ms`;
      const reason = isTimeout ? late : (code ?? error.message);
      const hint = code === 'ECONNRESET' && isTls ? '' : (HINTS[code ?? ''] ?? '');
      const message = code?.startsWith('HPE_')
        ? `the reply of ${at} is not HTTP; --at takes the HTTP address`
        : `sluice at ${at} is unavailable: ${reason}${hint}`;
      reject(isTimeout ? new TimeoutError(message) : new CommandError(message));
    };
    const outgoing = isTls
      ? requestTls({ ...options, ...(ca !== undefined && { ca: readTextFile(ca) }) })
      : request(options);
    outgoing.on('error', fail);
    outgoing.on('response', (response) => {
      let text = '';
      response.setEncoding('utf8');
      response.on('error', fail);
      response.on('data', (piece: string) => {
        text += piece;
        if (text.length > MAX_PAGE_BYTES)
          response.destroy(new Error(`reply longer than ${MAX_PAGE_BYTES} bytes`));
      });
      response.on('end', () => resolve({ status: response.statusCode ?? 0, text }));
    });
    outgoing.end(body);
  });
}

function socketOptionsOf(at: string): RequestOptions {
  const endpoint = parseEndpoint(at, '--at', DEFAULT_HTTP_PORT);
  return 'path' in endpoint ? { socketPath: endpoint.path } : endpoint;
}
