/**
 * The admin pages of backends, without the backends themselves: the list of commands needs no more, and loading backends
 * takes longer than all else that it does. A test compares with the registry.
 */

import type { BackendPage } from '../daemon-backend.ts';
import { groupsPage } from '../groups/daemon-view.ts';
import { peersPage } from '../peers/daemon-view.ts';
import { poolPage } from '../pool/daemon-view.ts';

export const BACKEND_PAGES: readonly { readonly name: string; readonly page: BackendPage }[] = [
  { name: 'peers', page: peersPage },
  { name: 'pool', page: poolPage },
  { name: 'groups', page: groupsPage },
];
