export type { DaemonAddress } from './address.ts';
export type {
  AcquireAllOptions,
  AcquireOptions,
  CallReport,
  CheckItem,
  CheckOptions,
  CheckResult,
  Client,
  ClientStats,
  TakeResult,
} from './api.ts';
export { connect } from './client.ts';
export type { InspectedKey, InspectedLimit, InspectedRule } from './key-status.ts';
export type { BackoffOptions, ClientOptions } from './options.ts';
