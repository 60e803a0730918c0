import { STATUS_CODES } from 'node:http';
import { limitNames } from '../../config/limit-names.ts';
import type { LimitConfig } from '../../config/limits.ts';
import { preview } from './parameters.ts';

export interface HttpResponse {
  readonly status: number;
  /** Names and values in turn, the form `writeHead` takes without conversion. */
  readonly headers: readonly string[];
  readonly body: string;
  /** True if the response stays open as an event stream and `body` is its first part. */
  readonly isEventStream?: boolean;
}

/** A promise only if a remote backend decides. */
export type EventualResponse = HttpResponse | Promise<HttpResponse>;

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

export const titleOf = (status: number): string => STATUS_CODES[status] ?? 'Refused';

/** The fields of a problem without a specific type. */
export const problemOf = (status: number, detail: string): Readonly<Record<string, unknown>> => ({
  type: 'about:blank',
  title: titleOf(status),
  status,
  detail,
});

export const problemResponse = (
  status: number,
  detail: string,
  ...headers: string[]
): HttpResponse => ({
  status,
  headers: ['Content-Type', 'application/problem+json', ...headers],
  body: `${JSON.stringify(problemOf(status, detail))}\n`,
});

export const unknownLimitResponse = (name: string, where = ''): HttpResponse =>
  problemResponse(404, `${where}There is no limit ${preview(name)}.`);

/** The response for operators, who may know the names of all limits. */
export const noSuchLimit = (name: string, limits: readonly LimitConfig[]): HttpResponse =>
  problemResponse(404, `There is no limit ${preview(name)}. Limits: ${limitNames(limits)}.`);
