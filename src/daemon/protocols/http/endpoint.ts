import type { RequestHead } from './key.ts';
import type { EventualResponse } from './response.ts';

export type EndpointHandler = (
  request: RequestHead,
  queryAt: number,
  body: Buffer,
) => EventualResponse;

export interface Endpoint {
  readonly methods: readonly string[];
  /** True if `access.ts` guards it. */
  readonly isAdmin: boolean;
  readonly handle: EndpointHandler;
}

export const READ_METHODS: readonly string[] = ['GET', 'HEAD'];
export const WRITE_METHODS: readonly string[] = ['POST'];

const createEndpoint =
  (isAdmin: boolean) =>
  (methods: readonly string[], handle: EndpointHandler): Endpoint => ({ methods, isAdmin, handle });

export const publicEndpoint = createEndpoint(false);
export const adminEndpoint = createEndpoint(true);
