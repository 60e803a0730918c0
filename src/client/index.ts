/** The door of `sluice/client`. */

export type { Address } from './address.ts';
export {
  type Answer,
  type AskOptions,
  type Client,
  type ClientStats,
  connect,
  type Result,
} from './client.ts';
export type { InspectedKey, InspectedLimit, InspectedRule } from './key-status.ts';
export type { Backoff, ClientOptions } from './options.ts';
