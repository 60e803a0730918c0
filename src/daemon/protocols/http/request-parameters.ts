import { parseJsonBody } from './check-request.ts';
import type { RequestHead } from './key.ts';
import { ValidationProblem } from './parameters.ts';
import { type HttpResponse, problemResponse } from './response.ts';

/** How parameters are read from a query or a form, and from JSON. */
export interface Formats<T> {
  form(text: string, from: number): T | ValidationProblem;
  json(value: unknown): T | ValidationProblem;
}

/** Parses the query, or a body by its Content-Type. Both together are refused as ambiguous. */
export function parseRequest<T extends object>(
  { headers, url = '' }: RequestHead,
  queryAt: number,
  body: Buffer,
  { form, json }: Formats<T>,
): T | HttpResponse {
  if (body.length === 0) return orProblemResponse(form(url, queryAt));
  if (queryAt < url.length)
    return problemResponse(400, 'Send parameters in the URL or in the body, not in both.');
  const [type] = String(headers['content-type'] ?? '').split(';', 1);
  const kind = type.trim().toLowerCase();
  if (kind === 'application/x-www-form-urlencoded')
    return orProblemResponse(form(body.toString('latin1'), 0));
  if (kind !== 'application/json') return WRONG_TYPE;
  const parsed = parseJsonBody(body);
  return orProblemResponse(parsed instanceof ValidationProblem ? parsed : json(parsed.value));
}

const WRONG_TYPE = problemResponse(
  415,
  'Send application/json or application/x-www-form-urlencoded.',
  'Accept-Post',
  'application/json, application/x-www-form-urlencoded',
);

const orProblemResponse = <T extends object>(read: T | ValidationProblem): T | HttpResponse =>
  read instanceof ValidationProblem ? problemResponse(400, read.detail) : read;
