/** `sluice/client`: checks with a daemon. */

export type { DaemonAddress } from './address.ts';
export {
  type AcquireOptions,
  type CallReport,
  type CheckItem,
  type CheckOptions,
  type CheckResult,
  type Client,
  type ClientStats,
  connect,
  type TakeResult,
} from './client.ts';
export type { InspectedKey, InspectedLimit, InspectedRule } from './key-status.ts';
export type { BackoffOptions, ClientOptions } from './options.ts';
