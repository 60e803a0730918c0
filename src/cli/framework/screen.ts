/** How a line looks where colours are shown. */
export type LineStyle = 'title' | 'heading' | 'problem';

export interface ScreenLine {
  /** Without control characters. */
  readonly text: string;
  readonly style?: LineStyle;
}

export interface Screen {
  readonly rows: number;
  readonly columns: number;
  /** Lines beyond the last row are left out. */
  show(lines: readonly ScreenLine[]): void;
  /** Calls back for every key that is pressed: a character, or the sequence of a special key. */
  onKey(listener: (key: string) => void): void;
  /** Ends what is shown: `closed` resolves. */
  quit(): void;
  /** Resolves after `quit`, when the user presses Ctrl-C, or when the process is told to stop. */
  readonly closed: Promise<void>;
  /** Restores the terminal. */
  close(): void;
}

/** Alternate buffer, no cursor, no line wrap; and back. */
const OPEN = '\x1b[?1049h\x1b[?25l\x1b[?7l';
const CLOSE = '\x1b[?7h\x1b[?25h\x1b[?1049l';

const HOME = '\x1b[H';
const CLEAR_REST_OF_LINE = '\x1b[K';
const CLEAR_BELOW = '\x1b[J';
const RESET = '\x1b[0m';

const STYLES: Readonly<Record<LineStyle, string>> = {
  title: '\x1b[1m',
  heading: '\x1b[2m',
  problem: '\x1b[31m',
};

/** Ctrl-C, Ctrl-D. */
const QUIT_KEYS = ['\x03', '\x04'];

const ESCAPE = '\x1b';

/** Splits what was read into keys: several may come at once, and an arrow key is several characters. */
function keysOf(text: string): string[] {
  if (text.startsWith(ESCAPE)) return [text];
  return [...text];
}

type Input = Pick<NodeJS.ReadStream, 'on' | 'off' | 'pause' | 'resume' | 'setRawMode'>;
type Output = Pick<NodeJS.WriteStream, 'rows' | 'columns'>;

export function openScreen(
  input: Input,
  output: Output,
  write: (text: string) => void,
  hasColours: boolean,
): Screen {
  let quit = (): void => {};
  const closed = new Promise<void>((resolve) => {
    quit = resolve;
  });
  let listener = (_key: string): void => {};
  const onKeys = (bytes: Buffer): void => {
    for (const key of keysOf(bytes.toString('utf8'))) {
      if (QUIT_KEYS.includes(key)) quit();
      else listener(key);
    }
  };
  process.once('SIGTERM', quit);
  process.once('SIGHUP', quit);
  input.setRawMode(true);
  input.on('data', onKeys);
  input.resume();
  write(OPEN);
  const encode = ({ text, style }: ScreenLine): string =>
    style && hasColours ? `${STYLES[style]}${text}${RESET}` : text;
  return {
    get rows() {
      return output.rows;
    },
    get columns() {
      return output.columns;
    },
    show(lines) {
      const shown = lines.slice(0, output.rows);
      const text = shown.map((line) => encode(line) + CLEAR_REST_OF_LINE).join('\r\n');
      write(HOME + text + CLEAR_BELOW);
    },
    onKey(given) {
      listener = given;
    },
    quit: () => quit(),
    closed,
    close() {
      process.off('SIGTERM', quit);
      process.off('SIGHUP', quit);
      input.off('data', onKeys);
      input.setRawMode(false);
      input.pause();
      write(CLOSE);
    },
  };
}
