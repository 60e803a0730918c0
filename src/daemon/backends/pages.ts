/** The admin pages of the daemon's backends, for the command line. */

export { BACKEND_PAGES } from '../../backends/pages/pages.ts';
