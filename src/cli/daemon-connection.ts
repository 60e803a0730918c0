import { parseEndpoint } from '../client/address.ts';
import { type Client, connect } from '../client/index.ts';
import { OptionReader } from '../core/options.ts';
import { parseFlagValue, readTextFile, SWITCH, TEXT } from './framework/command.ts';

export const CONNECTION_FLAGS = { at: TEXT, deadline: TEXT, tls: SWITCH, ca: TEXT } as const;

interface ConnectionFlags {
  readonly at?: string | undefined;
  readonly deadline?: string | undefined;
  readonly tls?: boolean | undefined;
  readonly ca?: string | undefined;
}

export function connectByFlags({ at, deadline, tls, ca }: ConnectionFlags): Client {
  const password = process.env.SLUICE_RESP_PASSWORD;
  return connect({
    at: parseEndpoint(at ?? '127.0.0.1:7611', '--at'),
    deadline: parseTime('--deadline', deadline ?? '1s'),
    onUnavailable: 'deny',
    ...(password && { password }),
    ...(tls && { tls: true as const }),
    ...(ca !== undefined && { tls: { ca: readTextFile(ca) } }),
  });
}

/** Replaces the client's option in a message by the flag of the command. */
export const messageOf = ({ message }: Error): string => message.replaceAll('`tls`', '`--tls`');

/** Read here, so that an error names the flag. */
export const parseTime = (flag: string, text: string): number =>
  new OptionReader('', { [flag]: parseFlagValue(text) }).duration(flag);
