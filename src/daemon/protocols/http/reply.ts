/**
 * Answers, before anybody sends them: a status, headers and a body. What went wrong is told as RFC 9457
 * has it.
 */

import { STATUS_CODES } from 'node:http';
import { shown } from './parameters.ts';

export interface Reply {
  readonly status: number;
  /** Names and values by turns, as `writeHead` takes them with the least ado. */
  readonly headers: readonly string[];
  readonly body: string;
  /** True if the body only begins here, and goes on once a second. */
  readonly isFeed?: boolean;
}

/** Tells a reply from what is read on the way to one. */
export const isReply = (value: object): value is Reply => 'body' in value;

export const json = (status: number, value: unknown): Reply => ({
  status,
  headers: ['Content-Type', 'application/json'],
  body: `${JSON.stringify(value)}\n`,
});

export const text = (status: number, body: string): Reply => ({
  status,
  headers: ['Content-Type', 'text/plain; charset=utf-8'],
  body,
});

export function problem(status: number, detail: string, ...headers: string[]): Reply {
  const title = STATUS_CODES[status] ?? 'Refused';
  return {
    status,
    headers: ['Content-Type', 'application/problem+json', ...headers],
    body: `${JSON.stringify({ type: 'about:blank', title, status, detail })}\n`,
  };
}

export const unknownLimit = (name: string, where = ''): Reply =>
  problem(404, `${where}There is no limit ${shown(name)}.`);
