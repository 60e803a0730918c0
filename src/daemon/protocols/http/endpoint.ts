/** A place that HTTP requests go to: what it takes, who may, and what it answers. */

import type { RequestHead } from './key.ts';
import type { HttpResponse } from './reply.ts';

export type EndpointHandler = (
  request: RequestHead,
  queryAt: number,
  body: Buffer,
) => HttpResponse | Promise<HttpResponse>;

export interface Endpoint {
  readonly methods: readonly string[];
  /** Behind the counter. */
  readonly isAdmin: boolean;
  readonly handle: EndpointHandler;
}

export const READ_METHODS: readonly string[] = ['GET', 'HEAD'];
export const WRITE_METHODS: readonly string[] = ['POST'];

/** For anybody. */
export const publicEndpoint = (methods: readonly string[], handle: EndpointHandler): Endpoint => ({
  methods,
  isAdmin: false,
  handle,
});

/** For those who look after the daemon. */
export const adminEndpoint = (methods: readonly string[], handle: EndpointHandler): Endpoint => ({
  methods,
  isAdmin: true,
  handle,
});
