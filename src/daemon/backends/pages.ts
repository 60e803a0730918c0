export { BACKEND_PAGES } from '../../backends/pages/pages.ts';
