export type { LenderView } from './borrower.ts';
export type { GroupsView } from './group.ts';
export {
  type GroupOptions,
  type GroupsMembership,
  type GroupsOptions,
  groups,
  type LocalBucketOptions,
  type RemoteBucketOptions,
} from './options.ts';
export type { BorrowRequest, GroupTransport } from './transport.ts';
