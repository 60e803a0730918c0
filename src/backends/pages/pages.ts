/**
 * The admin pages of backends without the backends themselves, because loading backends takes longer than all other
 * work of a command. A test compares this list with the registry.
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
