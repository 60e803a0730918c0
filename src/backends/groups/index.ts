/** A limit over regions far apart: `sluice/groups`. */

export type { DonorView } from './borrower.ts';
export type { GroupsView } from './membership.ts';
export {
  type GroupOptions,
  type GroupsOptions,
  type GroupsPlace,
  groups,
  type OwnBucket,
  type RemoteBucket,
} from './options.ts';
export type { Door, Want } from './transport.ts';
