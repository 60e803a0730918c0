export const SORT_ORDERS = ['denied', 'calls', 'allowed', 'use', 'name'] as const;
export type SortOrder = (typeof SORT_ORDERS)[number];

export interface TopView {
  readonly sort: SortOrder;
  /** Only limits and keys whose name contains it, in any case. */
  readonly filter: string;
  /** The filter is being typed. */
  readonly isTyping: boolean;
  readonly isPaused: boolean;
  readonly hasHelp: boolean;
}

export const DEFAULT_VIEW: TopView = {
  sort: 'denied',
  filter: '',
  isTyping: false,
  isPaused: false,
  hasHelp: false,
};

const MAX_FILTER_CHARS = 60;

const ENTER = ['\r', '\n'];
const ESCAPE = '\x1b';
const BACKSPACE = ['\x7f', '\b'];

/** The choice after a key; 'quit' for the key that ends. */
export function afterKey(view: TopView, key: string): TopView | 'quit' {
  return view.isTyping ? afterTyped(view, key) : afterCommand(view, key);
}

function afterTyped(view: TopView, key: string): TopView {
  if (ENTER.includes(key)) return { ...view, isTyping: false };
  if (key === ESCAPE) return { ...view, isTyping: false, filter: '' };
  if (BACKSPACE.includes(key)) return { ...view, filter: view.filter.slice(0, -1) };
  const isText = key >= ' ' && !key.startsWith(ESCAPE);
  return isText ? { ...view, filter: (view.filter + key).slice(0, MAX_FILTER_CHARS) } : view;
}

const SORT_KEYS: Readonly<Record<string, SortOrder>> = {
  d: 'denied',
  c: 'calls',
  a: 'allowed',
  u: 'use',
  n: 'name',
};

function afterCommand(view: TopView, key: string): TopView | 'quit' {
  const sort = SORT_KEYS[key.toLowerCase()];
  if (sort) return { ...view, sort };
  switch (key) {
    case 'q':
    case 'Q':
      return 'quit';
    case '/':
      return { ...view, isTyping: true };
    case ESCAPE:
      return { ...view, filter: '', hasHelp: false };
    case 'p':
    case ' ':
      return { ...view, isPaused: !view.isPaused };
    case 'h':
    case '?':
      return { ...view, hasHelp: !view.hasHelp };
    default:
      return view;
  }
}

/** The last line of the screen, at most 80 characters; help has the other keys. */
export function footOf({ sort, filter, isTyping }: TopView): string {
  if (isTyping) return `filter: ${filter}_   Enter keeps it, Esc removes it`;
  return `by ${sort}   d denied  c calls  a allowed  u use  n name   / filter  h help`;
}

/** The text behind the title. */
export function stateOf({ filter, isPaused }: TopView): string {
  return [isPaused && 'paused', filter && `only "${filter}"`].filter(Boolean).join(', ');
}

export const HELP_LINES: readonly string[] = [
  'd  most denied calls a second first     /  only names that contain a text',
  'c  most calls a second, hottest keys    p  stops and continues the updates',
  'a  most allowed calls a second first    h  shows and hides these lines',
  'u  nearest to their limit first         q  ends; Ctrl-C, too',
  'n  by name',
  '',
];
