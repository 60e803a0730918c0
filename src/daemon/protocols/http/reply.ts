/**
 * Answers, before anybody sends them: a status, headers and a body. What went wrong is told as RFC 9457
 * has it.
 */

import { STATUS_CODES } from 'node:http';
import { preview } from './parameters.ts';

export interface HttpResponse {
  readonly status: number;
  /** Names and values by turns, as `writeHead` takes them with the least ado. */
  readonly headers: readonly string[];
  readonly body: string;
  /** True if the body only begins here, and goes on once a second. */
  readonly isEventStream?: boolean;
}

/** Tells a reply from what is read on the way to one. */
export const isHttpResponse = (value: object): value is HttpResponse => 'body' in value;

export const jsonResponse = (status: number, value: unknown): HttpResponse => ({
  status,
  headers: ['Content-Type', 'application/json'],
  body: `${JSON.stringify(value)}\n`,
});

export const textResponse = (status: number, body: string): HttpResponse => ({
  status,
  headers: ['Content-Type', 'text/plain; charset=utf-8'],
  body,
});

export function problemResponse(
  status: number,
  detail: string,
  ...headers: string[]
): HttpResponse {
  const title = STATUS_CODES[status] ?? 'Refused';
  return {
    status,
    headers: ['Content-Type', 'application/problem+json', ...headers],
    body: `${JSON.stringify({ type: 'about:blank', title, status, detail })}\n`,
  };
}

export const unknownLimitResponse = (name: string, where = ''): HttpResponse =>
  problemResponse(404, `${where}There is no limit ${preview(name)}.`);
