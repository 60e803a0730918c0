/**
 * The files of the built package that the daemon reads or starts.
 *
 * Their places are relative to this module, and hold in both forms of the build: as module in dist/daemon/files, and in a
 * chunk of the command's bundle in dist/bin/chunks.
 */

/** False where sources run as they are, such as in tests: nothing of this is there. */
export const isBuilt = !import.meta.url.endsWith('.ts');

/** The page that browsers load. */
export const PAGE_FOLDER = new URL('../../page/', import.meta.url);

/** The process that does the input and output of connections. */
export const WORKER_SCRIPT = new URL('../workers/worker.js', import.meta.url);

/** The thread that loads the configuration. */
export const LOAD_WORKER_SCRIPT = new URL('../config/load-worker.js', import.meta.url);
