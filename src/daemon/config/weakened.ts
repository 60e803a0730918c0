/** Why a variable or a flag would weaken what the file says: it may only do so with `--override`. */

import { ConfigError } from '../../core/errors.ts';
import {
  formatListenAddress,
  isLoopback,
  type ListenAddress,
  readListenAddresses,
} from '../../core/listen-address.ts';
import { isRecord } from '../../core/options.ts';
import { DEFAULT_ADDRESS } from './read.ts';

/** Undefined if it may replace what the file says; a file without `listen` says nothing about listeners. */
export function weakenedBy(
  { path: [section, field], value }: { readonly path: readonly string[]; readonly value: unknown },
  file: unknown,
): string | undefined {
  if (!isRecord(file)) return undefined;
  if (section === 'unmatched')
    return file.unmatched === 'deny' && value !== 'deny' ? 'which is deny' : undefined;
  if (section !== 'listen' || !isRecord(file.listen)) return undefined;
  const protocol = field as keyof typeof DEFAULT_ADDRESS;
  const given = addressesOf(value);
  if (!given) return undefined; // reported where it is read
  const said = addressesOf(file.listen[protocol] ?? DEFAULT_ADDRESS[protocol]);
  if (!said) return 'which has a mistake';
  const isAsOpen = (address: ListenAddress): boolean =>
    said.some((each) => openness(each) >= openness(address) && guardOf(each) === '');
  if (given.every(isAsOpen)) return undefined;
  const texts = said.map((each) => `${formatListenAddress(each)}${guardOf(each)}`);
  return `which is ${texts.join(', ') || 'off'}`;
}

function addressesOf(value: unknown): readonly ListenAddress[] | undefined {
  try {
    return readListenAddresses(value, '');
  } catch (error) {
    if (error instanceof ConfigError) return undefined;
    throw error;
  }
}

/** What only a file can say of an address. */
function guardOf(listen: ListenAddress): string {
  if (listen.kind === 'tcp') return listen.tls ? ' with TLS' : '';
  return listen.mode === undefined ? '' : ' with a mode';
}

/** The more hosts can connect, the higher. */
function openness(listen: ListenAddress): number {
  if (isLoopback(listen)) return listen.kind === 'unix' ? 0 : 1;
  return listen.kind === 'tcp' && /^[0.:]+$/.test(listen.host) ? 3 : 2; // 0.0.0.0, ::
}
