/** A limit over regions far apart: `sluice/groups`. */

export type { Door, Want } from '../share/groups/door.ts';
export type { GroupsView } from '../share/groups/group.ts';
export type { DonorView } from '../share/groups/thief.ts';
export {
  type GroupOptions,
  type GroupsOptions,
  type GroupsPlace,
  groups,
  type OwnBucket,
  type RemoteBucket,
} from './groups.ts';
