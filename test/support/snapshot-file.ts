/** Writes a snapshot file from parts that are in memory. */

import type { TableSlices } from '../../src/backends/table-slices.ts';
import { type Snapshot, type SnapshotPart, writeSnapshot } from '../../src/daemon/snapshot.ts';

export const writeParts = (file: string, { parts, ...head }: Snapshot): Promise<number> =>
  writeSnapshot(file, { ...head, sources: parts.map(sourceOf) });

const sourceOf = ({ table, ...part }: SnapshotPart) => ({
  ...part,
  *slices(): TableSlices {
    yield table.entries;
    return table.debtUntil;
  },
});
